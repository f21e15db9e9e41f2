package device

import (
	"fmt"
	"os"
	"path/filepath"
)

// cdiFile is where containerd and CRI-O look for specifications that come and go.
const cdiFile = "/var/run/cdi/example.com-disk.json"

// WriteCDI has the runtime know a device node as a CDI device, and returns that device's full name.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
func WriteCDI(path string) (name string, err error) {
	const kind = "example.com/disk"
	device := filepath.Base(path)
	text := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":%q,"devices":[{"name":%q,"containerEdits":{"deviceNodes":[{"path":%q,"permissions":"r"}]}}]}`, kind, device, path)
	if err := os.MkdirAll(filepath.Dir(cdiFile), 0o755); err != nil {
		return "", fmt.Errorf("write a CDI specification: %w", err)
	}
	if err := os.WriteFile(cdiFile, []byte(text), 0o644); err != nil {
		return "", fmt.Errorf("write a CDI specification: %w", err)
	}
	return kind + "=" + device, nil
}

// RemoveCDI has the runtime forget it.
func RemoveCDI() { _ = os.Remove(cdiFile) }
