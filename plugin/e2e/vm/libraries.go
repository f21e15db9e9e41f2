package vm

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
)

var libraryFolders = []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib"}

// Program adds a program of the host or of an unpacked package tree under
// name, with the shared libraries it needs, which are looked up below root.
func (t *Tree) Program(name, file, root string) error {
	t.File(name, file)
	seen := map[string]bool{}
	return t.libraries(file, root, seen)
}

func (t *Tree) libraries(file, root string, seen map[string]bool) error {
	bin, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("read the libraries of %s: %w", file, err)
	}
	defer bin.Close()
	needed, err := bin.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read the libraries of %s: %w", file, err)
	}
	for _, p := range bin.Progs {
		if p.Type == elf.PT_INTERP {
			needed = append(needed, "ld-linux-x86-64.so.2")
		}
	}
	for _, lib := range needed {
		if seen[lib] {
			continue
		}
		seen[lib] = true
		found, err := findLibrary(root, lib)
		if err != nil {
			return fmt.Errorf("%s needs %s: %w", file, lib, err)
		}
		t.File("usr/lib/x86_64-linux-gnu/"+lib, found)
		if lib == "ld-linux-x86-64.so.2" {
			t.Link("lib64/"+lib, "/usr/lib/x86_64-linux-gnu/"+lib)
		}
		if err := t.libraries(found, root, seen); err != nil {
			return err
		}
	}
	return nil
}

func findLibrary(root, lib string) (string, error) {
	for _, folder := range libraryFolders {
		file := filepath.Join(root, folder, lib)
		if target, err := os.Readlink(file); err == nil && filepath.IsAbs(target) {
			file = filepath.Join(root, target)
		}
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("not found below %s", root)
}
