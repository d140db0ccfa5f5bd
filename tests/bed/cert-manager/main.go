// Command cert-manager runs the controllers of the published cert-manager module that self-signed and CA issuers need:
// its own main is not published. With --gateway-shim it also makes Certificates for annotated Gateways of
// the Gateway API. With --cainjector it runs the controllers of cainjector instead. The webhook, ACME and leader election
// are left out.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	corev1 "k8s.io/api/core/v1"

	"github.com/cert-manager/cert-manager/pkg/api"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	gatewayshim "github.com/cert-manager/cert-manager/pkg/controller/certificate-shim/gateways"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util"

	// Each import registers a controller or an issuer. Nothing is signed without the approver.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/metrics"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// workers is upstream's default for each controller.
const workers = 5

func main() {
	// controller-runtime owns --kubeconfig in the default flag set.
	flags := flag.NewFlagSet("cert-manager", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	injects := flags.Bool("cainjector", false, "run the controllers of cainjector instead")
	shims := flags.Bool("gateway-shim", false, "make Certificates for annotated Gateways of the Gateway API, whose CRDs must exist")
	_ = flags.Parse(os.Args[1:])

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	start := func() error { return run(ctx, *kubeconfig, *shims) }
	if *injects {
		start = func() error { return inject(ctx, *kubeconfig) }
	}
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "cert-manager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string, shims bool) error {
	ctx = logf.NewContext(ctx, klog.Background())
	options := controller.ContextOptions{
		Kubeconfig:         kubeconfig,
		KubernetesAPIQPS:   100,
		KubernetesAPIBurst: 200,
	}
	options.ClusterResourceNamespace = "default"
	options.EnableGatewayAPI = shims
	// Upstream waits an hour after a failed request: longer than any test.
	options.CertificateRequestMinimumBackoffDuration = 5 * time.Second
	options.CertificateRequestMaximumBackoffDuration = time.Minute

	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for name, construct := range controller.Known() {
		if name == gatewayshim.ControllerName && !shims {
			continue
		}
		one, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		group.Go(func() error { return one.Run(workers, ctx) })
	}
	// After the controllers, which ask for their informers when they are made.
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	if shims {
		shared.GWShared.Start(ctx.Done())
	}
	return group.Wait()
}

// inject keeps the caBundle of webhook configurations that have an annotation of cainjector.
func inject(ctx context.Context, kubeconfig string) error {
	log.SetLogger(klog.Background())
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	if err := api.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	// The field manager of the writes is a part of the user agent.
	controllers, err := manager.New(util.RestConfigWithUserAgent(config, "cainjector"), manager.Options{
		Scheme: scheme.Scheme,
		// The controllers watch only the metadata of Secrets.
		Client:  client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = cainjector.RegisterAllInjectors(ctx, controllers, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName: true, cainjector.ValidatingWebhookConfigurationName: true,
		},
	})
	if err != nil {
		return err
	}
	return controllers.Start(ctx)
}
