package guard

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// Node reads whether the node as a whole is short of memory.
type Node struct {
	Proc     string         // usually /proc
	Tree     *cgroupfs.Tree // for Kubepods
	Kubepods func() string  // whose memory.max bounds the available memory; nil or "": not known yet
	Reserve  func() uint64  // bytes that must remain available: the kubelet's eviction threshold; nil is 0
}

// reclaims returns how many allocations had to reclaim because the node had too little free memory: the sum of allocstall_* in /proc/vmstat,
// which does not include reclaim for a cgroup's limit (mm/vmscan.c, cgroup_reclaim).
func (n Node) reclaims() (uint64, error) {
	path := filepath.Join(n.Proc, "vmstat")
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	total, err := sumReclaims(string(data))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return total, nil
}

// available returns the bytes that the node can still give to a container: MemAvailable of /proc/meminfo less the reserve, and no more than
// kubepods may still use. Like the kubelet, it counts inactive_file as free: on any node that reads files, page cache fills kubepods up to
// its limit.
func (n Node) available() (uint64, error) {
	available, err := n.meminfo("MemAvailable")
	if err != nil {
		return 0, err
	}
	if n.Reserve != nil {
		available -= min(available, n.Reserve())
	}
	kubepods := ""
	if n.Kubepods != nil {
		kubepods = n.Kubepods()
	}
	if kubepods == "" {
		return available, nil
	}
	limit, err := n.Tree.Limit(kubepods)
	if err != nil || limit == cgroup.Max {
		return available, err
	}
	current, err := n.Tree.Current(kubepods)
	stat, err2 := n.Tree.Stat(kubepods)
	if err = cmp.Or(err, err2); err != nil {
		return 0, err
	}
	used := current - min(current, stat["inactive_file"])
	return min(available, limit-min(limit, used)), nil
}

// meminfo returns a value of /proc/meminfo in bytes.
func (n Node) meminfo(name string) (uint64, error) {
	info, err := sysfs.Meminfo(n.Proc)
	if err != nil {
		return 0, err
	}
	bytes, ok := info[name]
	if !ok {
		return 0, fmt.Errorf("read %s: %w", filepath.Join(n.Proc, "meminfo"), errMissing)
	}
	return bytes, nil
}

// errMissing means that a kernel file lacks expected lines.
var errMissing = errors.New("the expected lines are missing")

// sumReclaims adds the counters allocstall_* of /proc/vmstat; it fails if there are none.
func sumReclaims(text string) (uint64, error) {
	var total uint64
	found := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "allocstall") {
			continue
		}
		_, value, _ := strings.Cut(line, " ")
		number, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("line %q: the value is no number", line)
		}
		total, found = total+number, true
	}
	if !found {
		return 0, errMissing
	}
	return total, nil
}
