package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Root is where cgroup v2 is mounted.
const Root = "/sys/fs/cgroup"

// Paths are the cgroups that a kubelet makes with a driver, below Root.
type Paths struct {
	Driver setup.Driver
}

// Kubepods is the level of all pods.
func (p Paths) Kubepods() string {
	if p.Driver == setup.Systemd {
		return "kubepods.slice"
	}
	return "kubepods"
}

// QoS is the level of a class; Guaranteed pods are directly below kubepods.
func (p Paths) QoS(class corev1.PodQOSClass) string {
	name := strings.ToLower(string(class))
	switch {
	case class == corev1.PodQOSGuaranteed:
		return p.Kubepods()
	case p.Driver == setup.Systemd:
		return "kubepods.slice/kubepods-" + name + ".slice"
	}
	return "kubepods/" + name
}

// Pod is a pod's level.
func (p Paths) Pod(pod *Pod) string {
	qos := p.QoS(pod.Class())
	if p.Driver == setup.Systemd {
		prefix := strings.TrimSuffix(filepath.Base(qos), ".slice")
		return qos + "/" + prefix + "-pod" + strings.ReplaceAll(pod.UID, "-", "_") + ".slice"
	}
	return qos + "/pod" + pod.UID
}

// Kubepods is the folder of all pods.
func (n *Node) Kubepods() string { return filepath.Join(Root, n.Paths.Kubepods()) }

// QoS is the folder of a pod's QoS class.
func (n *Node) QoS(p *Pod) string { return filepath.Join(Root, n.Paths.QoS(p.Class())) }

// Dir is the folder of a pod's cgroup.
func (n *Node) Dir(p *Pod) string { return filepath.Join(Root, n.Paths.Pod(p)) }

// ContainerDir is the folder of a container's cgroup, whatever the runtime calls it.
func (n *Node) ContainerDir(p *Pod, name string) (string, error) {
	id := p.IDs[name]
	if id == "" {
		return "", fmt.Errorf("container %s/%s does not exist", p.Name, name)
	}
	children, err := os.ReadDir(n.Dir(p))
	if err != nil {
		return "", fmt.Errorf("look for the cgroup of %s/%s: %w", p.Name, name, err)
	}
	for _, child := range children {
		if child.IsDir() && strings.Contains(child.Name(), id) && !strings.Contains(child.Name(), "conmon") {
			return filepath.Join(n.Dir(p), child.Name()), nil
		}
	}
	return "", fmt.Errorf("no cgroup of %s/%s (%s) in %s", p.Name, name, id, n.Dir(p))
}

// Leaves are a container's cgroup and, with crun under systemd, the one inside it that holds the processes.
func Leaves(dir string) []string {
	inner := filepath.Join(dir, "container")
	if _, err := os.Stat(inner); err != nil {
		return []string{dir}
	}
	return []string{dir, inner}
}

// PIDs are the processes of a container.
func (n *Node) PIDs(p *Pod, name string) ([]int, error) {
	dir, err := n.ContainerDir(p, name)
	if err != nil {
		return nil, err
	}
	var pids []int
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(file)
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return err
	})
	if err == nil && len(pids) == 0 {
		err = fmt.Errorf("no process in %s", dir)
	}
	return pids, err
}

// Control is a folder of the node that containers of the pod see as /ctl: workloads wait for files in it.
func (n *Node) Control(p *Pod) string { return controlDir(p) }

func controlDir(p *Pod) string { return filepath.Join("/run/e2e/ctl", p.Name) }

// LogDir is where the runtime writes what the pod's containers print; each container has a folder with a file per start.
func LogDir(p *Pod) string { return filepath.Join("/var/log/pods", Namespace+"_"+p.Name+"_"+p.UID) }

// Output is what a container printed since its last start.
func (n *Node) Output(p *Pod, name string) string {
	for start := 9; start >= 0; start-- {
		text, err := os.ReadFile(filepath.Join(LogDir(p), name, fmt.Sprintf("%d.log", start)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var out strings.Builder
		for line := range strings.Lines(string(text)) {
			if fields := strings.SplitN(line, " ", 4); len(fields) == 4 { // time, stream, tag, text
				out.WriteString(fields[3])
			}
		}
		return out.String()
	}
	return ""
}
