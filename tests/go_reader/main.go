// Prints how Go reads texts, each in base64, on the lines of standard input:
//
//	bundle TEXT        the certificates that crypto/x509 loads (SHA-256, in their order)
//	pair CHAIN KEY     whether crypto/tls loads the pair
//	verify TEXT CHAIN  whether crypto/x509 verifies the first certificate of the chain with the bundle, now
package main

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
)

// The loop of (*x509.CertPool).AppendCertsFromPEM, which does not return the certificates that it loads.
func load(text []byte) []string {
	loaded := []string{}
	for rest := text; len(rest) > 0; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			continue
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			sum := sha256.Sum256(certificate.Raw)
			loaded = append(loaded, hex.EncodeToString(sum[:]))
		}
	}
	if ok := x509.NewCertPool().AppendCertsFromPEM(text); ok != (len(loaded) > 0) {
		panic("the loop above is not that of crypto/x509")
	}
	return loaded
}

func decode(text string) []byte {
	bytes, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return bytes
}

func verify(bundle, chain []byte) bool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	block, _ := pem.Decode(chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		panic(err)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		first, second, _ := strings.Cut(rest, " ")
		switch kind {
		case "bundle":
			fmt.Println(strings.Join(load(decode(first)), " "))
		case "pair":
			_, err := tls.X509KeyPair(decode(first), decode(second))
			fmt.Println(err == nil)
		case "verify":
			fmt.Println(verify(decode(first), decode(second)))
		default:
			panic(kind)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
