package sysfs

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

func TestKernelImage(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		drift uint64
	}{
		"one span":           {"01000000-03ffffff : Kernel code\n", 117440512},
		"a gap for rodata":   {"100000-7fffffff : System RAM\n  01000000-01ffffff : Kernel code\n  02000000-02bfffff : Kernel rodata\n  02c00000-031fffff : Kernel data\n  03a00000-03ffffff : Kernel bss\n", 117440512},
		"only the outer two": {"01000000-01ffffff : Kernel code\n03000000-03ffffff : Kernel bss\n", 117440512},
		"55 MiB of KEP-6232": {"27000000-285fffff : Kernel code\n28600000-292fffff : Kernel data\n29f00000-2a6fffff : Kernel bss\n", 119 << 20},
		"unprivileged":       {"00000000-00000000 : System RAM\n  00000000-00000000 : Kernel code\n  00000000-00000000 : Kernel data\n  00000000-00000000 : Kernel bss\n", 0},
		"no such lines":      {"00100000-7fffffff : System RAM\n40000000-4fffffff : Kernel rodata\n", 0},
		"empty":              {"", 0},
		"broken lines":       {"x-y : Kernel code\n2-1 : Kernel data\n1 : Kernel bss\n-1-2 : Kernel bss\n", 0},
		"a broken one aside": {"ffffffffffffffffff-2 : Kernel data\n01000000-03ffffff : Kernel code\n", 117440512},
		"all addresses":      {"0-ffffffffffffffff : Kernel code\n", 0},
		"beyond the bound":   {strings.Repeat("00000000-00000fff : Reserved\n", mostIomem/29) + strings.Repeat("\n", 30) + "01000000-03ffffff : Kernel code\n", 0},
		"a line too long":    {strings.Repeat("x", 1<<17) + "\n01000000-03ffffff : Kernel code\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := unpack(t, fixtures+"task-page.txtar")
			write(t, filepath.Join(root, "proc/iomem"), tc.text)
			m, err := Load(root)
			if err != nil {
				t.Fatal(err)
			}
			if got := m.Drift(); got != tc.drift {
				t.Errorf("drift = %d, want %d", got, tc.drift)
			}
		})
	}
}

// FuzzKernelImage: whatever the file has, what is added to the size does not overflow.
func FuzzKernelImage(f *testing.F) {
	f.Add("  01000000-01ffffff : Kernel code\n  02c00000-031fffff : Kernel data\n  03a00000-03ffffff : Kernel bss\n")
	f.Add("0-ffffffffffffffff : Kernel code")
	f.Add("00000000-00000000 : Kernel bss\n: Kernel data\n - : Kernel code")
	f.Fuzz(func(t *testing.T, text string) {
		m := machine.Machine{KernelImage: parseKernelImage(strings.NewReader(text))}
		if drift := m.Drift(); drift > math.MaxInt64 || drift > 0 && drift <= 64<<20 {
			t.Errorf("drift = %d", drift)
		}
	})
}
