// Calls a rate limit service over TLS again and again, and prints a line for each call: `ok`, or `failed: ` and why.
//
//	caller SECRET ADDRESS NAME
//
// SECRET is a folder with a mounted Secret, ADDRESS a file with the service's address, NAME the name in its certificate. Both are read again
// for each call, which makes a new connection: what is measured are handshakes.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"trustspan.dev/tests/bed/ratelimit/mounted"
)

const (
	pause    = 50 * time.Millisecond
	patience = 20 * time.Second
)

func call(secret, address, name string) error {
	pair, cas, err := mounted.Read(secret)
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: cas, ServerName: name}
	target, err := os.ReadFile(address)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("passthrough:///"+string(target), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	entry := &common.RateLimitDescriptor_Entry{Key: "generic_key", Value: "peers"}
	request := &ratelimit.RateLimitRequest{
		Domain:      "peers",
		Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{entry}}},
	}
	response, err := ratelimit.NewRateLimitServiceClient(connection).ShouldRateLimit(ctx, request)
	if err != nil {
		return err
	}
	if response.OverallCode != ratelimit.RateLimitResponse_OK {
		return fmt.Errorf("expected OK, saw %v", response.OverallCode)
	}
	return nil
}

func main() {
	secret, address, name := os.Args[1], os.Args[2], os.Args[3]
	for {
		if err := call(secret, address, name); err != nil {
			fmt.Println("failed:", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok")
		}
		time.Sleep(pause)
	}
}
