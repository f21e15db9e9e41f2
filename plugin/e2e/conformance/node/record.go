package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/conformance/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

const (
	kubepods = "/sys/fs/cgroup/kubepods.slice"
	bundles  = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"
	// period is the time between two looks at the cgroups.
	period = 500 * time.Millisecond
)

// record writes down the cgroup files of every container, its pod and their ancestors, whenever they have changed.
func record(stop <-chan struct{}) {
	out, err := os.Create(filepath.Join(setup.Logs, cgroups.File))
	if err != nil {
		return
	}
	defer out.Close()
	encoder := json.NewEncoder(out)
	seen := map[string]cgroups.Container{}
	for {
		now := map[string]cgroups.Container{}
		ancestors := cgroups.Files{}
		for _, dir := range []string{"", "kubepods-burstable.slice", "kubepods-besteffort.slice"} {
			ancestors.Read(filepath.Join(kubepods, dir), "kubepods/"+dir)
		}
		scopes, _ := filepath.Glob(kubepods + "/*.slice/cri-containerd-*.scope")
		deeper, _ := filepath.Glob(kubepods + "/*.slice/*.slice/cri-containerd-*.scope")
		for _, dir := range append(scopes, deeper...) {
			c, known := seen[dir]
			if !known {
				if c, known = identify(dir); !known {
					continue
				}
			}
			values := cgroups.Files{}
			values.Read(filepath.Dir(dir), "pod")
			values.Read(dir, "container")
			if len(values) < 2*len(ancestors)/3 { // it went away meanwhile
				continue
			}
			maps.Copy(values, ancestors)
			if !maps.Equal(values, c.Values) {
				c.Values, c.At = values, time.Now()
				_ = encoder.Encode(c)
			}
			now[dir] = c
		}
		for dir, c := range seen {
			if _, runs := now[dir]; !runs {
				c.At, c.Ended = time.Now(), true
				_ = encoder.Encode(c)
			}
		}
		seen = now
		select {
		case <-stop:
			return
		case <-time.After(period):
		}
	}
}

// identify reads from the runtime's bundle whose container a cgroup is; false for a sandbox.
func identify(dir string) (cgroups.Container, bool) {
	id := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "cri-containerd-"), ".scope")
	text, err := os.ReadFile(filepath.Join(bundles, id, "config.json"))
	if err != nil {
		return cgroups.Container{}, false
	}
	var spec struct{ Annotations map[string]string }
	if err := json.Unmarshal(text, &spec); err != nil {
		return cgroups.Container{}, false
	}
	const key = "io.kubernetes.cri."
	a := spec.Annotations
	return cgroups.Container{Namespace: a[key+"sandbox-namespace"], Pod: a[key+"sandbox-name"], Name: a[key+"container-name"], Since: time.Now()}, a[key+"container-type"] == "container"
}
