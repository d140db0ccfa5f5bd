// Gives a rate limit service its limits over mutual TLS, as Envoy Gateway does, and prints a line for each handshake: `ok`, or `failed: ` and
// why.
//
//	limits SECRET PORT
//
// SECRET is a folder with a mounted Secret, which is read again for each handshake. A connection ends after a moment, so that the service makes
// another one.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"trustspan.dev/tests/bed/ratelimit/mounted"
)

const (
	// The default of the service.
	node = "default"
	age  = 300 * time.Millisecond
)

// Prints how handshakes end.
type printing struct {
	credentials.TransportCredentials
}

func (inner printing) ServerHandshake(connection net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := inner.TransportCredentials.ServerHandshake(connection)
	switch {
	case err == nil:
		fmt.Println("ok")
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		// The service was stopped.
	default:
		fmt.Println("failed:", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return secured, info, err
}

func main() {
	secret, port := os.Args[1], os.Args[2]
	limits := &config.RateLimitConfig{
		Name:   "peers",
		Domain: "peers",
		Descriptors: []*config.RateLimitDescriptor{{
			Key: "generic_key", Value: "peers", RateLimit: &config.RateLimitPolicy{Unlimited: true},
		}},
	}
	snapshot, err := cache.NewSnapshot("1", map[resource.Type][]types.Resource{resource.RateLimitConfigType: {limits}})
	if err != nil {
		log.Fatal(err)
	}
	snapshots := cache.NewSnapshotCache(true, cache.IDHash{}, nil)
	if err := snapshots.SetSnapshot(context.Background(), node, snapshot); err != nil {
		log.Fatal(err)
	}
	newest := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, cas, err := mounted.Read(secret)
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: cas, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"},
		}, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	secured := printing{credentials.NewTLS(&tls.Config{GetConfigForClient: newest})}
	short := keepalive.ServerParameters{MaxConnectionAge: age, MaxConnectionAgeGrace: age}
	service := grpc.NewServer(grpc.Creds(secured), grpc.KeepaliveParams(short))
	discovery.RegisterAggregatedDiscoveryServiceServer(service, server.NewServer(context.Background(), snapshots, nil))
	log.Fatal(service.Serve(listener))
}
