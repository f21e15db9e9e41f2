package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	predicate "github.com/in-toto/attestation/go/predicates/provenance/v1"
	statement "github.com/in-toto/attestation/go/v1"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
	"google.golang.org/protobuf/encoding/protojson"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
)

// version is what the chart's folder says, so that both render the same.
var version = func() string {
	loaded, err := loader.Load("../helm/nri-memory-manager")
	if err != nil {
		panic(err)
	}
	return loaded.AppVersion()
}()

const commit = "0123456789abcdef0123456789abcdef01234567"

func build(t *testing.T) map[string][]byte {
	t.Helper()
	o := options{root: "../..", version: version, commit: commit, created: time.Unix(1700000000, 0).UTC(), built: map[string]parts{}}
	folder := t.TempDir()
	if err := o.run("linux/"+runtime.GOARCH, "linux/"+runtime.GOARCH, folder, nil); err != nil {
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
	needs.Program(t, "tar", "tar")
	needs.Program(t, "gzip", "gzip")
	first, second := build(t), build(t)
	folder := "nri-memory-manager-" + version + "-linux-" + runtime.GOARCH
	client := "kubectl-memory_manager-" + version + "-linux-" + runtime.GOARCH + ".tar.gz"
	want := []string{"SHA256SUMS", "image.tar", client, "memory-manager.yaml", "nri-memory-manager-" + version[1:] + ".tgz", folder + ".spdx.json", folder + ".tar.gz", "provenance.json"}
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
	sh(unpacked, "ls . licenses", "INSTALL.md\nLICENSE\nconfig.yaml\ncontainerd-1.7.toml\ncontainerd.toml\ncrio.conf\nlicenses\nnri-memory-manager\nnri-memory-manager.service\n")
	sh(unpacked, "ls licenses licenses/go", "LICENSE")
	checkSBOM(t, first[folder+".spdx.json"], filepath.Join(unpacked, binaryPath))
	checkProvenance(t, first)
	checkWorkflow(t, first)

	sh(downloads, "mkdir kubectl && tar -C kubectl -xzf "+client, "")
	sh(filepath.Join(downloads, "kubectl"), "ls . licenses", "LICENSE\nkubectl-memory_manager\nlicenses\n")
	sh(filepath.Join(downloads, "kubectl"), "./kubectl-memory_manager --version", "kubectl memory-manager version "+version)
	checkKrew(t, first["memory-manager.yaml"], client, first[client])

	packed, err := loader.LoadArchive(bytes.NewReader(first["nri-memory-manager-"+version[1:]+".tgz"]))
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

// checkSBOM compares a document with what the go command says of the binary.
func checkSBOM(t *testing.T, text []byte, binary string) {
	t.Helper()
	document, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(document); err != nil {
		t.Error(err)
	}
	described, err := spdxlib.GetDescribedPackageIDs(document)
	if err != nil || len(described) != 1 || described[0] != document.Packages[0].PackageSPDXIdentifier {
		t.Errorf("the document describes %v (%v), want the first package", described, err)
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := document.Packages[0].PackageChecksums[0].Value, fmt.Sprintf("%x", sha256.Sum256(content)); got != want {
		t.Errorf("the binary's sum is %s in the document, want %s", got, want)
	}
	out, err := exec.Command("go", "version", "-m", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(strings.SplitN(string(out), "\n", 2)[0])
	want := []string{"pkg:golang/github.com/nri-memory-manager/nri-memory-manager@" + version,
		"pkg:golang/stdlib@" + strings.TrimPrefix(fields[len(fields)-1], "go")}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); f[0] == "dep" {
			want = append(want, "pkg:golang/"+f[1]+"@"+strings.ReplaceAll(f[2], "+", "%2B"))
		}
	}
	var got []string
	for _, linked := range document.Packages {
		got = append(got, linked.PackageExternalReferences[0].Locator)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 20 {
		t.Errorf("modules of the binary (-) and of the document (+):\n%s", diff)
	}
}

// checkProvenance wants a statement about all files of a release but itself and the sums, which name it.
func checkProvenance(t *testing.T, release map[string][]byte) {
	t.Helper()
	var made statement.Statement
	if err := protojson.Unmarshal(release["provenance.json"], &made); err != nil {
		t.Fatal(err)
	}
	if err := made.Validate(); err != nil {
		t.Error(err)
	}
	subjects := map[string]string{}
	for _, subject := range made.Subject {
		subjects[subject.Name] = subject.Digest["sha256"]
	}
	want := map[string]string{}
	for name, content := range release {
		if name != "provenance.json" && name != "SHA256SUMS" {
			want[name] = fmt.Sprintf("%x", sha256.Sum256(content))
		}
	}
	if diff := cmp.Diff(want, subjects); diff != "" {
		t.Errorf("files of the release (-) and of the provenance (+):\n%s", diff)
	}
	text, err := protojson.Marshal(made.Predicate)
	if err != nil {
		t.Fatal(err)
	}
	var how predicate.Provenance
	if err := protojson.Unmarshal(text, &how); err != nil {
		t.Fatal(err)
	}
	if got := how.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]; got != commit {
		t.Errorf("the provenance names commit %s, want %s", got, commit)
	}
	if got := how.BuildDefinition.ExternalParameters.AsMap(); got["version"] != version || got["platforms"] != "linux/"+runtime.GOARCH {
		t.Errorf("the provenance names the parameters %v", got)
	}
}

// checkKrew compares krew's manifest with the archive that it names.
func checkKrew(t *testing.T, text []byte, archive string, content []byte) {
	t.Helper()
	var manifest struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, ShortDescription string
			Platforms                 []krewPlatform
		}
	}
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	spec := manifest.Spec
	if manifest.Kind != "Plugin" || manifest.Metadata.Name != "memory-manager" || spec.Version != version || spec.ShortDescription == "" || len(spec.Platforms) != 1 {
		t.Fatalf("the manifest for krew is\n%s", text)
	}
	want := krewPlatform{URI: source + "/releases/download/" + version + "/" + archive, SHA256: fmt.Sprintf("%x", sha256.Sum256(content)), Bin: "kubectl-memory_manager"}
	want.Selector.MatchLabels = map[string]string{"os": "linux", "arch": runtime.GOARCH}
	if !reflect.DeepEqual(spec.Platforms[0], want) {
		t.Errorf("krew installs %+v, want %+v", spec.Platforms[0], want)
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
	for version, want := range map[string]string{"v1.2.3-rc.1": "1.2.3-rc.1", "bdb28e5-dirty": version[1:]} {
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
		if got, want := packed.Metadata.Annotations[imagesAnnotation], "image: "+repository+":"+version+"\n"; !strings.Contains(got, want) {
			t.Errorf("release %s names for Artifact Hub\n%s\nwant %s", version, got, want)
		}
	}
}

func TestWrongInputIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		platforms, commit string
		kinds             []string
		want              string
	}{
		"platform": {"linux/amd64/x/y", "", nil, `platform "linux/amd64/x/y"`},
		"commit":   {"linux/amd64", "main", nil, `commit "main": want its 40 hexadecimal digits`},
		"kind":     {"linux/amd64", "", []string{"chart", "rpm"}, `"rpm": want image, tarballs, sboms, chart or kubectl`},
	} {
		t.Run(name, func(t *testing.T) {
			err := options{root: "../..", commit: c.commit, built: map[string]parts{}}.run(c.platforms, "linux/amd64", t.TempDir(), c.kinds)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
