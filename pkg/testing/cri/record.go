package cri

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
)

// Record is what a container runtime has of its containers, and what its OCI runtime makes of that: their cgroups. A test that
// calls an agent itself has a Record; Runtime puts NRI in front of one.
type Record struct {
	// CRIO is CRI-O, else it is containerd.
	CRIO bool
	// Crun makes a cgroup of its own in each container's, else it is runc.
	Crun bool
	// Cgroups is where containers' cgroups are made; nil makes none.
	Cgroups Cgroups
	// Applied receives the files that were written to a container's cgroup, as systemd does for its scope; nil is nobody.
	Applied func(cgroup string, files map[string]string) error

	containers []*api.Container
	created    map[string]*api.LinuxResources // what CRI-O finds again when it restarts
}

// Cgroups is a cgroup hierarchy.
type Cgroups interface {
	Make(cgroup string) error
	Remove(cgroup string) error
	Write(cgroup, file, text string) error
}

// Path names the cgroup that the runtime makes for a container in its pod's, as linux.cgroupsPath of the OCI spec and as it is.
func (r *Record) Path(parent, id string) (cgroupsPath, cgroup string) {
	prefix := "cri-containerd"
	if r.CRIO {
		prefix = "crio"
	}
	switch systemd := path.Ext(parent) == ".slice"; {
	case systemd:
		cgroupsPath = path.Base(parent) + ":" + prefix + ":" + id
	case r.CRIO:
		cgroupsPath = path.Join(parent, prefix+"-"+id)
	default:
		cgroupsPath = path.Join(parent, id)
	}
	return cgroupsPath, cgroups.Path(cgroupsPath)[1:]
}

// Create enters a container and makes its cgroup.
func (r *Record) Create(container *api.Container) error {
	if container.Linux == nil {
		container.Linux = &api.LinuxContainer{}
	}
	if container.Linux.Resources == nil {
		container.Linux.Resources = &api.LinuxResources{}
	}
	container.State = api.ContainerState_CONTAINER_CREATED
	for _, dir := range r.cgroups(container) {
		if err := r.Cgroups.Make(dir); err != nil {
			return err
		}
	}
	if err := r.apply(container, container.Linux.Resources); err != nil {
		return err
	}
	r.containers = append(r.containers, container)
	if r.created == nil {
		r.created = map[string]*api.LinuxResources{}
	}
	r.created[container.Id] = proto.Clone(container.Linux.Resources).(*api.LinuxResources)
	return nil
}

// Update lays resources over a container's: containerd applies all that it has then, and CRI-O what it was asked for.
func (r *Record) Update(container *api.Container, to *api.LinuxResources) error {
	Merge(container.Linux.Resources, to)
	if r.CRIO {
		return r.apply(container, to)
	}
	return r.apply(container, container.Linux.Resources)
}

// Restart has the runtime read what it keeps on the disk: CRI-O has a container's resources as it was created.
func (r *Record) Restart() {
	if !r.CRIO {
		return
	}
	for _, container := range r.containers {
		container.Linux.Resources = proto.Clone(r.created[container.Id]).(*api.LinuxResources)
	}
}

// Exit ends a container's processes; its cgroup goes with them.
func (r *Record) Exit(container *api.Container) error {
	container.State = api.ContainerState_CONTAINER_STOPPED
	if dirs := r.cgroups(container); len(dirs) > 0 {
		return r.Cgroups.Remove(dirs[0])
	}
	return nil
}

// Forget drops a container.
func (r *Record) Forget(id string) {
	r.containers = slices.DeleteFunc(r.containers, func(c *api.Container) bool { return c.Id == id })
	delete(r.created, id)
}

// Living are the containers that have not ended, in the order of their creation. A runtime lists no others.
func (r *Record) Living() (living []*api.Container) {
	for _, container := range r.containers {
		if container.State != api.ContainerState_CONTAINER_STOPPED {
			living = append(living, container)
		}
	}
	return living
}

// Find finds a container; nil is none.
func (r *Record) Find(id string) *api.Container {
	for _, container := range r.containers {
		if container.Id == id {
			return container
		}
	}
	return nil
}

// apply is the OCI runtime's part.
func (r *Record) apply(container *api.Container, resources *api.LinuxResources) error {
	files, err := filesOf(resources)
	if err != nil {
		return err
	}
	dirs := r.cgroups(container)
	for _, dir := range dirs {
		for _, file := range slices.Sorted(maps.Keys(files)) {
			if err := r.Cgroups.Write(dir, file, files[file]); err != nil {
				return err
			}
		}
	}
	if r.Applied == nil || len(dirs) == 0 {
		return nil
	}
	return r.Applied(dirs[0], files)
}

// cgroups are a container's, the outer one first; none for a container without a path.
func (r *Record) cgroups(container *api.Container) (dirs []string) {
	at := container.GetLinux().GetCgroupsPath()
	if r.Cgroups == nil || at == "" {
		return nil
	}
	dir := cgroups.Path(at)[1:]
	if r.Crun {
		return []string{dir, dir + "/container"}
	}
	return []string{dir}
}

// pageSize is that of the kernel, which shows limits in whole pages.
const pageSize = 4096

// filesOf are the cgroup files that resources name.
func filesOf(resources *api.LinuxResources) (map[string]string, error) {
	files := map[string]string{}
	for key, value := range resources.GetUnified() {
		if strings.ContainsRune(key, '/') {
			return nil, fmt.Errorf("unified key %q is not a file of a cgroup", key)
		}
		files[key] = value
	}
	if limit := resources.GetMemory().GetLimit(); limit != nil {
		files["memory.max"] = cgroup.Default("memory.max")
		if limit.Value > 0 {
			files["memory.max"] = strconv.FormatInt(limit.Value&^(pageSize-1), 10)
		}
	}
	if cpus := resources.GetCpu().GetCpus(); cpus != "" {
		files["cpuset.cpus"] = cpus
	}
	if mems := resources.GetCpu().GetMems(); mems != "" {
		files["cpuset.mems"] = mems
	}
	return files, nil
}
