package cgroupfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

func TestValuesOfACgroup(t *testing.T) {
	of := func(v uint64) *uint64 { return &v }
	text := func(v string) *string { return &v }
	long := strings.Repeat("0,2,4,6,8,", 100) + "10"
	tests := map[string]struct {
		files   map[string]string
		options []Option
		want    Values
		err     string // ROOT is the tree's
	}{
		"all files": {
			files: map[string]string{
				"memory.min": "4096\n", "memory.low": "0\n", "memory.high": "max\n", "memory.max": "1073741824\n", "cpuset.mems": "0-1\n",
			},
			want: Values{Min: of(4096), Low: of(0), High: of(cgroup.Max), Limit: of(1 << 30), Mems: text("0-1")},
		},
		"files without a line break": {
			files: map[string]string{"memory.min": "4096", "cpuset.mems": "0"},
			want:  Values{Min: of(4096), Mems: text("0")},
		},
		"the parent's nodes": {files: map[string]string{"cpuset.mems": "\n"}, want: Values{Mems: text("")}},
		"a long line":        {files: map[string]string{"cpuset.mems": long + "\n"}, want: Values{Mems: text(long)}},
		"no files":           {files: map[string]string{"": ""}},
		"no files, plain": {
			files: map[string]string{"": ""}, options: []Option{Plain()},
			want: Values{Min: of(0), Low: of(0), High: of(cgroup.Max), Limit: of(cgroup.Max), Mems: text("")},
		},
		"an empty file, plain": {
			files: map[string]string{"memory.high": ""}, options: []Option{Plain()},
			want: Values{Min: of(0), Low: of(0), High: of(cgroup.Max), Limit: of(cgroup.Max), Mems: text("")},
		},
		"what is no number": {
			files: map[string]string{"memory.min": "1\n", "memory.low": "lots\n", "memory.high": "\n"},
			want:  Values{Min: of(1)},
			err: `parse ROOT/kubepods/pod1/c/memory.low: "lots" is not a number of bytes or max` + "\n" +
				`parse ROOT/kubepods/pod1/c/memory.high: "" is not a number of bytes or max`,
		},
		"what cannot be read": {
			files: map[string]string{"memory.min": "1\n", "memory.max/": ""},
			want:  Values{Min: of(1)},
			err:   "read ROOT/kubepods/pod1/c/memory.max: is a directory",
		},
	}
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				files := map[string]string{}
				for file, text := range test.files {
					files["kubepods/pod1/c/"+file] = text
				}
				tree := open(t, files, test.options...)
				got, err := tree.Values("kubepods/pod1/c")
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Error(diff)
				}
				want := strings.ReplaceAll(test.err, "ROOT", tree.Root())
				if err == nil && want != "" || err != nil && err.Error() != want {
					t.Errorf("got error %v, want %q", err, want)
				}
			})
		}
	})
}

func TestValuesOfACgroupThatIsNotThere(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		tree := open(t, map[string]string{"kubepods/pod1/": "", "kubepods/file": "", "system.slice/memory.min": "0\n"}, Plain())
		for _, link := range []string{"kubepods/podlink", "kubepods/pod1/memory.min"} {
			if err := os.Symlink("/proc", filepath.Join(tree.Root(), link)); err != nil {
				t.Fatal(err)
			}
		}
		for cgroup, want := range map[string]string{
			"kubepods/pod2":    "read cgroup " + tree.Root() + "/kubepods/pod2: file does not exist",
			"kubepods/file":    "not a directory",
			"kubepods/podlink": "read " + tree.Root() + "/kubepods/podlink/memory.min: ",
			"kubepods/pod1":    "read " + tree.Root() + "/kubepods/pod1/memory.min: ", // of the link
			"system.slice":     `cgroup "system.slice" is not below kubepods`,
			"kubepods/..":      "is not below kubepods",
		} {
			v, err := tree.Values(cgroup)
			if err == nil || !strings.Contains(err.Error(), want) || v.Min != nil {
				t.Errorf("%s: %+v, %v, want %s", cgroup, v, err, want)
			}
			if gone := errors.Is(err, fs.ErrNotExist); gone != (cgroup == "kubepods/pod2") {
				t.Errorf("%s: gone is %t", cgroup, gone)
			}
		}
	})
}

// answering is a kernel that answers a write, and a read of memory.min, with an error.
type answering struct {
	Kernel
	err error
}

func (a answering) Write(_, _, _ string, _ int) error { return a.err }

func (a answering) Read(cgroup, file string, last int, buffer []byte) ([]byte, error) {
	if file == "memory.min" {
		return nil, a.err
	}
	return a.Kernel.Read(cgroup, file, last, buffer)
}

// A cgroup that is removed between two of its files answers ENODEV; what was read before says nothing any more.
func TestACgroupThatIsRemovedWhileItIsRead(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/memory.low": "7\n"})
	for err, removed := range map[error]bool{unix.ENOENT: false, unix.ENODEV: true} {
		v, got := New(tree.Root(), answering{tree.kernel, err}).Values("kubepods")
		if errors.Is(got, fs.ErrNotExist) != removed || (v.Low == nil) != removed {
			t.Errorf("%v: %+v, %v", err, v, got)
		}
	}
}
