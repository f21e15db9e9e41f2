package simulator

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// hugepages are a container's limits of huge pages, by resource name without the prefix ("2Mi").
func (k kubelet) hugepages(pod *corev1.Pod, container *corev1.Container) map[string]uint64 {
	pages := map[string]uint64{}
	for _, size := range k.pageSizes() {
		if limit := hugepageLimit(pod, container, size); limit > 0 {
			pages[quantity.Format(size)] = limit
		}
	}
	return pages
}

func (r *Result) writeHugepages(b *strings.Builder) {
	var rows []string
	for _, c := range r.Containers {
		for _, size := range slices.Sorted(maps.Keys(c.hugepages)) {
			rows = append(rows, fmt.Sprintf("%s/%s\t%s\t%s\t%s", c.Namespace, c.Pod, c.name(), size, quantity.Short(c.hugepages[size])))
		}
	}
	tables.Section(b, "HUGE PAGES", tables.Columns("POD\tCONTAINER\tPAGE SIZE\tLIMIT", rows...))
}
