// Package mounted reads a Secret that is mounted as the kubelet does.
package mounted

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
)

// Read returns the pair and the CAs of a Secret, all of one version.
func Read(secret string) (tls.Certificate, *x509.CertPool, error) {
	// The kubelet replaces this link when the Secret has changed.
	version, err := filepath.EvalSymlinks(filepath.Join(secret, "..data"))
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(version, "tls.crt"), filepath.Join(version, "tls.key"))
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	bundle, err := os.ReadFile(filepath.Join(version, "ca.crt"))
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(bundle) {
		return tls.Certificate{}, nil, fmt.Errorf("no CA in %s", version)
	}
	return pair, cas, nil
}
