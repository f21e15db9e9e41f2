package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// serveImage serves the one image of an OCI layout archive as a registry on
// loopback: the one way into CRI-O's storage that needs no further tool.
func serveImage(file string) error {
	in, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("serve the image: %w", err)
	}
	defer in.Close()
	blobs := map[string][]byte{} // by digest
	var manifest string
	for r := tar.NewReader(in); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if sum, ok := strings.CutPrefix(header.Name, "blobs/sha256/"); ok {
			blobs["sha256:"+sum] = data
		}
		if header.Name == "index.json" {
			var index struct{ Manifests []struct{ Digest string } }
			if err := json.Unmarshal(data, &index); err != nil || len(index.Manifests) == 0 {
				return fmt.Errorf("no manifest in %s: %v", file, err)
			}
			manifest = index.Manifests[0].Digest
		}
	}
	listener, err := net.Listen("tcp", setup.Registry)
	if err != nil {
		return fmt.Errorf("serve the image: %w", err)
	}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			digest := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
			kind := "application/octet-stream"
			if strings.Contains(r.URL.Path, "/manifests/") {
				kind = "application/vnd.oci.image.manifest.v1+json"
				if !strings.HasPrefix(digest, "sha256:") {
					digest = manifest
				}
			}
			data, found := blobs[digest]
			if r.URL.Path != "/v2/" && !found {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Docker-Content-Digest", digest)
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			if r.Method != http.MethodHead {
				_, _ = w.Write(data)
			}
		}))
	}()
	return nil
}
