package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const binaryPath = "nri-memory-manager"

// parts are what every artefact of a platform holds.
type parts struct {
	binary   file
	licenses []file
}

// parts builds the parts of a platform, once.
func (o options) parts(platform v1.Platform) (parts, error) {
	if built, done := o.built[platform.String()]; done {
		return built, nil
	}
	binary, err := o.build(platform, "./plugin")
	if err != nil {
		return parts{}, err
	}
	licenses, err := o.licenses(platform, "./plugin")
	if err != nil {
		return parts{}, err
	}
	o.built[platform.String()] = parts{file{binaryPath, 0o755, binary}, licenses}
	return o.built[platform.String()], nil
}

// build compiles a program for a platform: static, without the paths of this machine, repeatable.
func (o options) build(platform v1.Platform, program string) ([]byte, error) {
	folder, err := os.MkdirTemp("", "binary")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	out := filepath.Join(folder, binaryPath)
	if _, err := o.goCommand(platform, "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-tags", "grpcnotrace,nethttpomithttp2",
		"-ldflags", "-s -w -buildid= -X main.version="+o.version, "-o", out, program); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

// licenseFile matches what Go modules call the texts that must travel with their code.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)`)

// licenses collects the licence texts of every module that is linked into a program, and ours.
func (o options) licenses(platform v1.Platform, program string) ([]file, error) {
	list, err := o.goCommand(platform, "list", "-deps", "-json=Module,Standard", program)
	if err != nil {
		return nil, err
	}
	folders := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(list)); ; {
		var pkg struct {
			Standard bool
			Module   *struct{ Path, Dir string }
		}
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		if pkg.Module != nil {
			folders[pkg.Module.Path] = pkg.Module.Dir
		}
	}
	goroot, err := o.goCommand(platform, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	folders["go"] = string(bytes.TrimSpace(goroot))
	var files []file
	for module, folder := range folders {
		found := false
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if entry.IsDir() || !licenseFile.MatchString(entry.Name()) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
			if err != nil {
				return nil, err
			}
			files, found = append(files, file{path.Join("licenses", module, entry.Name()), 0o644, content}), true
		}
		if !found {
			return nil, fmt.Errorf("module %s has no licence file in %s", module, folder)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return bytes.Compare([]byte(a.path), []byte(b.path)) })
	return files, nil
}

// goCommand runs the go command in the main module for a platform and returns what it printed.
func (o options) goCommand(platform v1.Platform, arguments ...string) ([]byte, error) {
	command := exec.Command("go", arguments...)
	command.Dir = o.root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off",
		"GOOS="+platform.OS, "GOARCH="+platform.Architecture)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", arguments[0], err, stderr.String())
	}
	return out, nil
}
