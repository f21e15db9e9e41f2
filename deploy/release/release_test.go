package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// version is what the chart's folder says, so that both render the same.
const version = "v0.1.0"

func build(t *testing.T) map[string][]byte {
	t.Helper()
	o := options{root: "../..", version: version, created: time.Unix(1700000000, 0).UTC(), built: map[string]parts{}}
	folder := t.TempDir()
	if err := o.run("linux/"+runtime.GOARCH, folder, nil); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		if files[entry.Name()], err = os.ReadFile(filepath.Join(folder, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestRelease builds a release twice and uses it as those do who download it.
func TestRelease(t *testing.T) {
	first, second := build(t), build(t)
	folder := "nri-memory-manager-" + version + "-linux-" + runtime.GOARCH
	want := []string{"SHA256SUMS", "image.tar", "nri-memory-manager-0.1.0.tgz", folder + ".tar.gz"}
	if names := slices.Sorted(maps.Keys(first)); !slices.Equal(names, want) {
		t.Fatalf("a release is %q, want %q", names, want)
	}
	downloads := t.TempDir()
	for name, content := range first {
		if !bytes.Equal(content, second[name]) {
			t.Errorf("%s: two builds of the same sources differ", name)
		}
		if err := os.WriteFile(filepath.Join(downloads, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sh := func(folder, command, want string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", command)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q in:\n%s", command, err, want, out)
		}
	}
	sh(downloads, "sha256sum --check SHA256SUMS", folder+".tar.gz: OK")
	sh(downloads, "tar -xzf "+folder+".tar.gz", "")
	unpacked := filepath.Join(downloads, folder)
	sh(unpacked, "./nri-memory-manager version", version)
	sh(unpacked, "./nri-memory-manager config check config.yaml", "")
	sh(unpacked, "ls . licenses", "INSTALL.md\nLICENSE\nconfig.yaml\ncontainerd.toml\ncrio.conf\nlicenses\nnri-memory-manager\nnri-memory-manager.service\n")
	sh(unpacked, "ls licenses licenses/go", "LICENSE")

	packed, err := loader.LoadArchive(bytes.NewReader(first["nri-memory-manager-0.1.0.tgz"]))
	if err != nil {
		t.Fatal(err)
	}
	source, err := loader.Load("../helm/nri-memory-manager")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := render(t, packed), render(t, source); !maps.Equal(got, want) {
		t.Errorf("the packed chart renders\n%s\nits folder\n%s", got, want)
	}
}

func render(t *testing.T, c *chart.Chart) map[string]string {
	t.Helper()
	values, err := chartutil.ToRenderValues(c, nil, chartutil.ReleaseOptions{Name: "nri-memory-manager", Namespace: "kube-system"}, chartutil.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, values)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestChartTakesTheVersionOfTheRelease keeps a release's chart from installing another release's image.
func TestChartTakesTheVersionOfTheRelease(t *testing.T) {
	for version, want := range map[string]string{"v1.2.3-rc.1": "1.2.3-rc.1", "bdb28e5-dirty": "0.1.0"} {
		made, err := options{root: "../..", version: version}.packedChart()
		if err != nil {
			t.Fatal(err)
		}
		packed, err := loader.LoadArchive(bytes.NewReader(made[0].content))
		if err != nil {
			t.Fatal(err)
		}
		if got := packed.Metadata; got.Version != want || got.AppVersion != version || made[0].name != "nri-memory-manager-"+want+".tgz" {
			t.Errorf("release %s has chart %s of version %s for image %s", version, made[0].name, got.Version, got.AppVersion)
		}
	}
}

func TestWrongInputIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		platforms string
		kinds     []string
		want      string
	}{
		"platform": {"linux/amd64/x/y", nil, `platform "linux/amd64/x/y"`},
		"kind":     {"linux/amd64", []string{"chart", "rpm"}, `"rpm": want image, tarballs or chart`},
	} {
		t.Run(name, func(t *testing.T) {
			err := options{root: "../..", built: map[string]parts{}}.run(c.platforms, t.TempDir(), c.kinds)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
