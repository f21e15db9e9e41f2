package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image/png"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/browser"
)

// picture is one of the daemon's page.
type picture struct {
	file          string
	width, height int
	dark          bool
}

// maxPicture bounds a picture's file, for they are in the repository.
const maxPicture = 200_000

// parsePicture reads FILE:WIDTHxHEIGHT, and :dark after it.
func parsePicture(text string) (p picture, err error) {
	fields := strings.Split(text, ":")
	if len(fields) == 3 && fields[2] == "dark" {
		p.dark, fields = true, fields[:2]
	}
	wrong := fmt.Errorf("%q: want FILE:WIDTHxHEIGHT or FILE:WIDTHxHEIGHT:dark, of 300 to 4000 pixels", text)
	if len(fields) != 2 || fields[0] == "" {
		return p, wrong
	}
	p.file = fields[0]
	width, height, _ := strings.Cut(fields[1], "x")
	for _, side := range []struct {
		text string
		to   *int
	}{{width, &p.width}, {height, &p.height}} {
		if *side.to, err = strconv.Atoi(side.text); err != nil || *side.to < 300 || *side.to > 4000 {
			return p, wrong
		}
	}
	return p, nil
}

// photograph takes the pictures of the page as the daemon serves it.
func (o options) photograph(ctx context.Context, node *simulator.Node, plugin *plugin) error {
	if err := plugin.work(ctx, node.Cgroups); err != nil {
		return err
	}
	document, err := plugin.document(ctx)
	if err != nil {
		return err
	}
	page, err := plugin.servePage()
	if err != nil {
		return err
	}
	defer page.Close()
	for _, p := range o.pictures {
		if err := p.take(ctx, page.Addr, document.Version); err != nil {
			return fmt.Errorf("picture %s: %w", p.file, err)
		}
	}
	return nil
}

// servePage passes what a browser asks for on to the daemon's socket.
func (p *plugin) servePage() (*http.Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serving the page: %w", err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "plugin"})
	proxy.Transport = p.client.Transport
	server := &http.Server{Addr: listener.Addr().String(), Handler: proxy, ReadHeaderTimeout: stopTimeout}
	go server.Serve(listener)
	return server, nil
}

// take has the browser draw the page of a version in a window of the picture's size.
func (p picture) take(ctx context.Context, address, version string) error {
	file, err := filepath.Abs(p.file)
	if err != nil {
		return err
	}
	flags := []string{"--screenshot=" + file, fmt.Sprintf("--window-size=%d,%d", p.width, p.height)}
	if p.dark {
		flags = append(flags, "--blink-settings=preferredColorScheme=0")
	}
	if _, err := browser.Open(ctx, "http://"+address+"/", flags...); err != nil {
		return err
	}
	return compress(file, version)
}

// compress writes a PNG again, smaller than a browser in a hurry does, and labelled with the version that it shows.
func compress(file, version string) error {
	drawn, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	picture, err := png.Decode(bytes.NewReader(drawn))
	if err != nil {
		return err
	}
	var small bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, picture); err != nil {
		return err
	}
	if small.Len() > maxPicture {
		return fmt.Errorf("has %d bytes, want at most %d: choose a smaller size", small.Len(), maxPicture)
	}
	return os.WriteFile(file, label(small.Bytes(), version), 0o644)
}

// label notes in a PNG which version of the plugin it shows, so that a test can read it: in a tEXt chunk behind the header.
func label(picture []byte, version string) []byte {
	const header = 8 + 25 // the signature and the chunk IHDR
	chunk := "tEXtSoftware\x00nri-memory-manager " + version
	out := binary.BigEndian.AppendUint32(slices.Clone(picture[:header]), uint32(len(chunk)-len("tEXt")))
	out = binary.BigEndian.AppendUint32(append(out, chunk...), crc32.ChecksumIEEE([]byte(chunk)))
	return append(out, picture[header:]...)
}

// work plays what the containers' processes and the kernel would do: the processes have touched a part of their memory, on the
// nodes where it is allocated. It returns when the daemon has seen that.
func (p *plugin) work(ctx context.Context, tree *cgroups.Tree) error {
	document, err := p.document(ctx)
	if err != nil {
		return err
	}
	seen := func(*status.Document) bool { return true }
	for i := range document.Pods {
		for j := range document.Pods[i].Containers {
			container := &document.Pods[i].Containers[j]
			if container.State != "running" || container.Cgroup == "" {
				continue
			}
			percent := uint64(45 + (17*i+29*j)%50)
			used := max(container.Limit, container.Request) / 100 * percent
			if container.Limit == 0 && container.Request == 0 {
				used = 64 << 20
			}
			if err := touch(tree, container, used, percent, document.Nodes); err != nil {
				return err
			}
			seen = func(d *status.Document) bool {
				usage := d.Pods[i].Containers[j].Usage
				return usage != nil && usage.Current == used
			}
		}
	}
	return p.await(ctx, seen)
}

// touch writes what the kernel counts for a container: allocated memory where it is allocated, other memory on the first node.
func touch(tree *cgroups.Tree, container *status.Container, used, percent uint64, nodes []status.Node) error {
	perNode := map[int]uint64{}
	for _, block := range container.Blocks {
		for _, part := range block.PerNode {
			if block.Type == memorymanager.Memory {
				perNode[part.Node] += part.Bytes / 100 * percent
			}
		}
	}
	if len(perNode) == 0 && len(nodes) > 0 {
		perNode[nodes[0].ID] = used
	}
	line := "anon"
	for _, node := range nodes {
		line += fmt.Sprintf(" N%d=%d", node.ID, perNode[node.ID])
	}
	return errors.Join(tree.Write(container.Cgroup, "memory.numa_stat", line+"\n"),
		tree.Write(container.Cgroup, "memory.current", strconv.FormatUint(used, 10)))
}

// await asks for the status until it shows something.
func (p *plugin) await(ctx context.Context, shows func(*status.Document) bool) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		document, err := p.document(ctx)
		if err != nil {
			return err
		}
		if shows(document) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the plugin to see what containers use: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}
