// The same webhook with controller-runtime and typed objects, for ./bench: what a Go program that is written in the usual way costs.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	networking "istio.io/client-go/pkg/apis/networking/v1"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	source  = "root"
	managed = "gateway"
	undo    = "trustspan.dev/undo"
	rotated = "trustspan.dev/rotation-hash"
)

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
}

// record is what undoes a rewrite.
type record []operation

func (r *record) renamed(path string) {
	*r = append(*r, operation{"test", path, managed}, operation{"replace", path, source})
}

func (r record) text() (string, error) {
	text, err := json.Marshal(r)
	return string(text), err
}

type mutator struct {
	decoder admission.Decoder
	hash    string
}

func (m *mutator) Handle(_ context.Context, request admission.Request) admission.Response {
	var rewritten any
	var err error
	switch request.Kind.Kind {
	case "Gateway":
		rewritten, err = m.gateway(request)
	case "Deployment":
		rewritten, err = m.deployment(request)
	default:
		return admission.Allowed("")
	}
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	marshaled, err := json.Marshal(rewritten)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, marshaled)
}

func (m *mutator) gateway(request admission.Request) (any, error) {
	gateway := &networking.Gateway{}
	if err := m.decoder.Decode(request, gateway); err != nil {
		return nil, err
	}
	var made record
	for index, server := range gateway.Spec.Servers {
		if server.Tls != nil && server.Tls.CredentialName == source {
			server.Tls.CredentialName = managed
			made.renamed(fmt.Sprintf("/spec/servers/%d/tls/credentialName", index))
		}
	}
	text, err := append(made, operation{Op: "remove", Path: "/metadata/annotations"}).text()
	gateway.Annotations = map[string]string{undo: text}
	return gateway, err
}

func (m *mutator) deployment(request admission.Request) (any, error) {
	deployment := &appsv1.Deployment{}
	if err := m.decoder.Decode(request, deployment); err != nil {
		return nil, err
	}
	var made record
	for index, volume := range deployment.Spec.Template.Spec.Volumes {
		if volume.Secret != nil && volume.Secret.SecretName == source {
			volume.Secret.SecretName = managed
			made.renamed(fmt.Sprintf("/spec/template/spec/volumes/%d/secret/secretName", index))
		}
	}
	made = append(made, operation{Op: "remove", Path: "/spec/template/metadata/annotations"})
	text, err := append(made, operation{Op: "remove", Path: "/metadata/annotations"}).text()
	deployment.Spec.Template.Annotations = map[string]string{rotated: m.hash}
	deployment.Annotations = map[string]string{undo: text}
	return deployment, err
}

type validator struct{ decoder admission.Decoder }

// Handle checks with crypto/x509 what trustspan checks of a bundle and a pair: CAs, validity, signatures of roots, duplicates, key, and the leaf's path.
func (v *validator) Handle(_ context.Context, request admission.Request) admission.Response {
	secret := &corev1.Secret{}
	if err := v.decoder.Decode(request, secret); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	bundle, ok := secret.Data["ca.crt"]
	if !ok {
		return admission.Allowed("")
	}
	now, roots, seen := time.Now(), x509.NewCertPool(), map[string]bool{}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return admission.Denied(err.Error())
		}
		if !ca.IsCA || now.After(ca.NotAfter) || now.Before(ca.NotBefore) || seen[string(ca.Raw)] {
			return admission.Denied("ca.crt: " + ca.Subject.String())
		}
		if err := ca.CheckSignatureFrom(ca); err != nil {
			return admission.Denied(err.Error())
		}
		seen[string(ca.Raw)] = true
		roots.AddCert(ca)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		return admission.Denied(err.Error())
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return admission.Denied(err.Error())
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
		return admission.Denied(err.Error())
	}
	return admission.Allowed("")
}

func main() {
	port := flag.Int("port", 0, "port on loopback")
	dir := flag.String("cert-dir", "", "directory of tls.crt and tls.key")
	hash := flag.String("hash", "", "rotation hash of Deployments")
	flag.Parse()
	log.SetLogger(zap.New(zap.WriteTo(os.Stderr)))

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, networking.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	decoder := admission.NewDecoder(scheme)
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *dir})
	null := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })
	server.Register("/null", &admission.Webhook{Handler: null})
	server.Register("/mutate", &admission.Webhook{Handler: &mutator{decoder, *hash}})
	server.Register("/validate", &admission.Webhook{Handler: &validator{decoder}})
	if err := server.Start(context.Background()); err != nil {
		panic(err)
	}
}
