module trustspan.dev/tests/bed/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/envoyproxy/gateway v1.9.1
	istio.io/api v1.31.1
	sigs.k8s.io/gateway-api v1.6.3
)
