package guard

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// Node reads whether the node as a whole is short of memory.
type Node struct {
	Proc     string         // usually /proc
	Tree     *cgroupfs.Tree // for Kubepods
	Kubepods func() string  // its memory.max, where the kubelet sets one, bounds what pods can be given; nil or "": not known yet
	Reserve  func() uint64  // bytes that must stay available: the kubelet's eviction threshold; nil is 0
}

// Reclaims returns how many allocations have had to reclaim because the node had too little free memory: the sum of
// allocstall_* in /proc/vmstat. Reclaim for a cgroup's limit does not count there (mm/vmscan.c, cgroup_reclaim).
func (n Node) Reclaims() (uint64, error) {
	return n.sum("vmstat", func(name string) bool { return strings.HasPrefix(name, "allocstall") })
}

// Available returns the bytes that the node can still give to a container: MemAvailable of /proc/meminfo without the
// reserve, and not more than kubepods may still take. Like the kubelet, it counts page cache that has not been used for
// long (inactive_file) as free: kubepods' memory.current grows up to its limit on any node that reads files.
func (n Node) Available() (uint64, error) {
	kibibytes, err := n.sum("meminfo", func(name string) bool { return name == "MemAvailable:" })
	if err != nil {
		return 0, err
	}
	available := kibibytes * 1024
	if n.Reserve != nil {
		available -= min(available, n.Reserve())
	}
	if n.Kubepods == nil {
		return available, nil
	}
	kubepods := n.Kubepods()
	if kubepods == "" {
		return available, nil
	}
	limit, err := n.Tree.Limit(kubepods)
	if err != nil || limit == cgroup.Max {
		return available, err
	}
	current, err := n.Tree.Current(kubepods)
	if err != nil {
		return 0, err
	}
	stat, err := n.Tree.Stat(kubepods)
	if err != nil {
		return 0, err
	}
	used := current - min(current, stat["inactive_file"])
	return min(available, limit-min(limit, used)), nil
}

// Swap returns the node's free swap in bytes.
func (n Node) Swap() (uint64, error) {
	kibibytes, err := n.sum("meminfo", func(name string) bool { return name == "SwapFree:" })
	return kibibytes * 1024, err
}

func (n Node) sum(name string, wanted func(string) bool) (uint64, error) {
	path := filepath.Join(n.Proc, name)
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	total, err := sumFields(file, wanted)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return total, nil
}

// sumFields adds the values of the wanted "name value …" lines, and fails when there is none.
func sumFields(r io.Reader, wanted func(string) bool) (uint64, error) {
	var total uint64
	found := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		if !wanted(name) {
			continue
		}
		value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		number, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("line %q: the value is no number", lines.Text())
		}
		total, found = total+number, true
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("the expected lines are missing")
	}
	return total, nil
}
