package cgroup

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Driver is the cgroup driver of kubelet and runtime.
type Driver string

// The two cgroup drivers.
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

const (
	kubepods   = "kubepods"
	slice      = ".slice"
	scope      = ".scope"
	longestDir = 4096 // PATH_MAX
)

// PodPath holds the cgroups of a pod and its parents, which the kubelet creates, relative to the cgroup mount, without a leading slash.
type PodPath struct {
	Kubepods string
	// QoS is empty for a Guaranteed pod, which is directly below kubepods or the system partition.
	QoS    string
	Pod    string
	Class  memoryqos.QOSClass
	Driver Driver
}

// System returns the cgroup of the system partition (KEP-5894), which is between kubepods and the QoS levels of its pods; "" for a pod outside
// of it.
func (p PodPath) System() string {
	if above := path.Dir(cmp.Or(p.QoS, p.Pod)); above != p.Kubepods {
		return above
	}
	return ""
}

// ParsePod finds a pod's cgroups from the CgroupParent that a runtime passes. It supports both drivers, CRI-O's base names
// ("kubepods-pod1.slice") and the prefixes of the kubelet's --cgroup-root. A path outside of kubepods is an error.
func ParsePod(cgroupParent string) (PodPath, error) {
	p, err := parsePod(cgroupParent)
	if err != nil {
		return PodPath{}, fmt.Errorf("cgroup parent %q: %w", cgroupParent, err)
	}
	return p, nil
}

func parsePod(parent string) (PodPath, error) {
	names, err := split(parent)
	if err != nil {
		return PodPath{}, err
	}
	driver := Cgroupfs
	if strings.HasSuffix(names[len(names)-1], slice) {
		driver = Systemd
		if len(names) == 1 {
			names = expand(names[0])
		}
	}
	// The pod is last. Above it is kubepods, with at most a QoS level and the system partition in between. The rest is --cgroup-root.
	for above := 2; above <= 4 && above <= len(names); above++ {
		top := len(names) - above
		if !isKubepods(names[top], driver) {
			continue
		}
		class, ok := classify(names[top:], driver)
		if !ok {
			break
		}
		p := PodPath{
			Kubepods: path.Join(names[:top+1]...),
			Pod:      path.Join(names...),
			Class:    class,
			Driver:   driver,
		}
		if class != memoryqos.Guaranteed {
			p.QoS = path.Dir(p.Pod)
		}
		return p, nil
	}
	return PodPath{}, fmt.Errorf("not a pod's: want …/kubepods[/system][/burstable|/besteffort]/pod<uid> or …kubepods[-system][-burstable|-besteffort]-pod<uid>.slice")
}

// split splits a path and refuses components that could lead elsewhere.
func split(dir string) ([]string, error) {
	switch {
	case strings.Trim(dir, "/") == "":
		return nil, fmt.Errorf("is empty")
	case len(dir) > longestDir:
		return nil, fmt.Errorf("is longer than %d bytes", longestDir)
	}
	names := strings.Split(strings.TrimSuffix(strings.TrimPrefix(dir, "/"), "/"), "/")
	for _, name := range names {
		if name == "" || name == "." || name == ".." {
			return nil, fmt.Errorf("must not contain the component %q", name)
		}
		if i := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }); i >= 0 {
			return nil, fmt.Errorf("must not contain the character %q", name[i])
		}
	}
	return names, nil
}

// expand returns a slice's path: systemd puts a-b.slice into a.slice (systemd.slice(5)).
func expand(unit string) []string {
	stem := strings.TrimSuffix(unit, slice)
	var names []string
	for i := 1; i < len(stem); i++ {
		if stem[i] == '-' {
			names = append(names, stem[:i]+slice)
		}
	}
	return append(names, unit)
}

func isKubepods(name string, driver Driver) bool {
	if driver == Systemd {
		return name == kubepods+slice || strings.HasSuffix(name, "-"+kubepods+slice)
	}
	return name == kubepods
}

// classify returns the QoS class from the names from kubepods down to the pod, and whether all are names that the kubelet gives.
func classify(names []string, driver Driver) (memoryqos.QOSClass, bool) {
	class := memoryqos.Guaranteed
	last := len(names) - 1
	for i := 1; i < last; i++ {
		level, ok := below(names[i-1], names[i], driver)
		switch {
		case !ok:
			return "", false
		case level == LevelSystem && i == 1:
		case level == LevelBurstable && i == last-1:
			class = memoryqos.Burstable
		case level == "besteffort" && i == last-1:
			class = memoryqos.BestEffort
		default:
			return "", false
		}
	}
	pod, ok := below(names[last-1], names[last], driver)
	uid, isPod := strings.CutPrefix(pod, "pod")
	// A dash in a slice's name would be a level of its own.
	return class, ok && isPod && uid != "" && (driver != Systemd || !strings.Contains(uid, "-"))
}

// below returns what a cgroup adds to the name of its parent, and whether its name is derived from it.
func below(above, name string, driver Driver) (level string, ok bool) {
	if driver != Systemd {
		return name, true
	}
	return strings.CutPrefix(strings.TrimSuffix(name, slice), strings.TrimSuffix(above, slice)+"-")
}

// Container returns the cgroup of the container with this ID from the CgroupsPath of its OCI spec: a path
// ("/kubepods/pod1/<id>", ".../crio-<id>") or systemd's "<slice>:<runtime>:<id>".
func (p PodPath) Container(cgroupsPath, id string) (string, error) {
	leaf, err := p.leaf(cgroupsPath, id)
	if err != nil {
		return "", fmt.Errorf("cgroups path %q of container %q: %w", cgroupsPath, id, err)
	}
	return p.Pod + "/" + leaf, nil
}

func (p PodPath) leaf(cgroupsPath, id string) (string, error) {
	if ids, err := split(id); err != nil {
		return "", fmt.Errorf("the id %w", err)
	} else if len(ids) != 1 || ids[0] != id || strings.Contains(id, ":") || strings.HasSuffix(id, slice) {
		return "", fmt.Errorf("the id is not a name")
	}
	if unit := strings.Split(cgroupsPath, ":"); len(unit) > 1 {
		return p.scope(unit, id)
	}
	names, err := split(cgroupsPath)
	if err != nil {
		return "", err
	}
	leaf := names[len(names)-1]
	if path.Join(names[:len(names)-1]...) != p.Pod {
		return "", fmt.Errorf("not in the pod's cgroup /%s", p.Pod)
	}
	if name := strings.TrimSuffix(leaf, scope); name != id && !strings.HasSuffix(name, "-"+id) {
		return "", fmt.Errorf("does not end in the container's id")
	}
	return leaf, nil
}

// scope returns the name that runc and crun give to the unit <slice>:<runtime>:<id>.
func (p PodPath) scope(unit []string, id string) (string, error) {
	if len(unit) != 3 || p.Driver != Systemd {
		return "", fmt.Errorf("want <slice>:<runtime>:<id>, and a pod whose cgroup is a slice")
	}
	parent, runtime, name := path.Base(unit[0]), unit[1], unit[2]
	names, err := split(runtime)
	switch {
	case parent != path.Base(p.Pod):
		return "", fmt.Errorf("not in the pod's slice %s", path.Base(p.Pod))
	case name != id:
		return "", fmt.Errorf("does not end in the container's id")
	case runtime == "":
		return id + scope, nil
	case err != nil || len(names) != 1 || names[0] != runtime:
		return "", fmt.Errorf("the runtime %q is not a name", runtime)
	}
	return runtime + "-" + id + scope, nil
}

// Unit returns the systemd unit of a cgroup, a slice or scope; "" if it has none.
func Unit(cgroup string) string {
	if name := path.Base(cgroup); strings.HasSuffix(name, slice) || strings.HasSuffix(name, scope) {
		return name
	}
	return ""
}

// Inside reports whether a relative path is in kubepods and cannot lead out of it.
func Inside(cgroup string) bool {
	if cgroup == "" || cgroup[0] == '/' || path.Clean(cgroup) != cgroup {
		return false
	}
	found := false
	for name := range strings.SplitSeq(cgroup, "/") {
		if name == ".." || strings.IndexByte(name, 0) >= 0 {
			return false
		}
		found = found || isKubepods(name, Cgroupfs) || isKubepods(name, Systemd)
	}
	return found
}
