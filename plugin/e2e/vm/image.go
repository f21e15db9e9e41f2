package vm

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
)

// writeImage writes an OCI image layout archive with one layer: the workload,
// and busybox, whose sleep is the sandbox's command. A sandbox must be as small
// as the real one, since it shares the pod's memory limit. CRI-O's takes no
// arguments: there it is the workload.
func writeImage(file, name, program, busybox string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("make the test image: %w", err)
	}
	tools, err := os.ReadFile(busybox)
	if err != nil {
		return fmt.Errorf("make the test image: %w", err)
	}
	return writeLayout(file, []string{name}, tarFile{"workload", 0o755, binary, ""}, tarFile{"pause", 0o755, binary, ""}, tarFile{"bin/sleep", 0o755, tools, ""},
		tarFile{"tmp/.keep", 0o644, nil, ""}, tarFile{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/workload\n"), ""})
}

// writeSuiteImage writes an image under each of the names that the pods of Kubernetes' suites have: busybox under the names of
// its applets.
func writeSuiteImage(file string, names []string, busybox string, applets []string) error {
	tools, err := os.ReadFile(busybox)
	if err != nil {
		return fmt.Errorf("make the suites' image: %w", err)
	}
	files := []tarFile{{"bin/busybox", 0o755, tools, ""}, {"tmp/.keep", 0o644, nil, ""}, {"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/bin/sh\n"), ""}}
	for _, applet := range applets {
		files = append(files, tarFile{"bin/" + applet, 0o777, nil, "busybox"})
	}
	return writeLayout(file, names, files...)
}

// writeLayout writes an OCI image layout archive with one layer, under several names.
func writeLayout(file string, names []string, files ...tarFile) error {
	layer, err := tarOf(files)
	if err != nil {
		return err
	}
	config := mustJSON(map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/bin/sleep", "2147483647"}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	const oci = "application/vnd.oci.image."
	manifest := mustJSON(map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json",
		"config": descriptor(oci+"config.v1+json", config),
		"layers": []any{descriptor(oci+"layer.v1.tar", layer)},
	})
	var named []any
	for _, name := range names {
		top := descriptor(oci+"manifest.v1+json", manifest)
		top["annotations"] = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
		named = append(named, top)
	}
	index := mustJSON(map[string]any{"schemaVersion": 2, "manifests": named})
	archive, err := tarOf([]tarFile{
		{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`), ""},
		{"index.json", 0o644, index, ""},
		{blob(layer), 0o644, layer, ""}, {blob(config), 0o644, config, ""}, {blob(manifest), 0o644, manifest, ""},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, archive, 0o644); err != nil {
		return fmt.Errorf("make the test image: %w", err)
	}
	return nil
}

type tarFile struct {
	name string
	mode int64
	data []byte
	link string // the target of a symbolic link
}

func tarOf(files []tarFile) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}
		if f.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.link
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("make the test image: %w", err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("make the test image: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("make the test image: %w", err)
	}
	return out.Bytes(), nil
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
func blob(data []byte) string   { return fmt.Sprintf("blobs/sha256/%x", sha256.Sum256(data)) }

func descriptor(mediaType string, data []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digest(data), "size": len(data)}
}

// mustJSON encodes values that cannot fail to encode.
func mustJSON(value any) []byte {
	out, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return out
}
