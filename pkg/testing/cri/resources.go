package cri

import "github.com/containerd/nri/pkg/api"

// Merge puts the fields that are set in from over those in to.
func Merge(to, from *api.LinuxResources) {
	if memory := from.GetMemory(); memory != nil {
		if to.Memory == nil {
			to.Memory = &api.LinuxMemory{}
		}
		replace(&to.Memory.Limit, memory.Limit)
		replace(&to.Memory.Reservation, memory.Reservation)
		replace(&to.Memory.Swap, memory.Swap)
	}
	if cpu := from.GetCpu(); cpu != nil {
		if to.Cpu == nil {
			to.Cpu = &api.LinuxCPU{}
		}
		replace(&to.Cpu.Shares, cpu.Shares)
		replace(&to.Cpu.Quota, cpu.Quota)
		replace(&to.Cpu.Period, cpu.Period)
		if cpu.Cpus != "" {
			to.Cpu.Cpus = cpu.Cpus
		}
		if cpu.Mems != "" {
			to.Cpu.Mems = cpu.Mems
		}
	}
	for _, limit := range from.GetHugepageLimits() {
		mergeHugepages(to, limit)
	}
	for key, value := range from.GetUnified() {
		if to.Unified == nil {
			to.Unified = map[string]string{}
		}
		to.Unified[key] = value
	}
}

func mergeHugepages(to *api.LinuxResources, limit *api.HugepageLimit) {
	for _, old := range to.HugepageLimits {
		if old.PageSize == limit.PageSize {
			old.Limit = limit.Limit
			return
		}
	}
	to.HugepageLimits = append(to.HugepageLimits, &api.HugepageLimit{PageSize: limit.PageSize, Limit: limit.Limit})
}

func replace[T any](to **T, from *T) {
	if from != nil {
		*to = from
	}
}
