package status

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Explanation says why a container has what it has; the contract of `explain -o json` and of /explain.
type Explanation struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	QOSClass  string `json:"qosClass"`
	Container string `json:"container"`
	Pinning   string `json:"pinning"`
	// NotWritten says why what was decided is not in the kernel's files: a dry run, or a rollback.
	NotWritten string `json:"notWritten,omitempty"`
	// Defaults names the rule of the configuration that stands for annotations, and which; absent if none does.
	Defaults string `json:"defaults,omitempty"`
	// Placement is how it was, or would be, placed. Its candidates are judged now, and for a container that is placed as if its own
	// allocation were not there.
	Placement *memorymanager.Explanation `json:"placement,omitempty"`
	Rejection *ledger.Rejection          `json:"rejection,omitempty"`
	// Memory are the steps of the arithmetic to memory.min, low and high, a line each, for people. Values has the bytes.
	Memory []string `json:"memory,omitempty"`
	Values *Values  `json:"values,omitempty"`
	// PendingResize is what a resize asks for and could not be allocated yet, by type of memory.
	PendingResize memorymanager.Request `json:"pendingResize,omitempty"`
	// ExclusiveCPUs counts the container's own CPUs by NUMA node, CPUs says how many of them are remote to its memory.
	ExclusiveCPUs map[int]int `json:"exclusiveCPUs,omitempty"`
	CPUs          string      `json:"cpus,omitempty"`
	// Migration is what a write of its cpuset.mems moves while it runs.
	Migration *Migration `json:"migration,omitempty"`
	// MemoryPolicy is the NUMA memory policy that its process was started with and MemoryPolicySource what it follows from,
	// NoMemoryPolicy why it has none although one is configured or asked for.
	MemoryPolicy       string `json:"memoryPolicy,omitempty"`
	MemoryPolicySource string `json:"memoryPolicySource,omitempty"`
	NoMemoryPolicy     string `json:"noMemoryPolicy,omitempty"`
	// OOMScore is the oom_score_adj of its processes in place of the kubelet's. NoOOMScore says why they have the kubelet's although another
	// one is configured or requested.
	OOMScore   *ledger.OOMScore `json:"oomScore,omitempty"`
	NoOOMScore string           `json:"noOOMScore,omitempty"`
	// Unused is what is allocated and not used yet, by NUMA node; absent where that is not known.
	Unused map[int]Unused `json:"unused,omitempty"`
	// Devices are the container's devices and their NUMA nodes.
	Devices []topologymanager.Device `json:"devices,omitempty"`
	// Throttling is how memory.high has held it up; absent where it has not.
	Throttling *Throttling `json:"throttling,omitempty"`
	// OOMKill is the verdict on the last OOM kill in the container; absent without one.
	OOMKill *oom.Verdict `json:"oomKill,omitempty"`
}

// Values are a container's memory request and the values of its files that follow from it, in bytes.
type Values struct {
	Request uint64 `json:"request"`
	// RequestError is how much larger the request can truly be.
	RequestError uint64  `json:"requestError,omitempty"`
	Min          *uint64 `json:"min,omitempty"`
	Low          *uint64 `json:"low,omitempty"`
	High         *uint64 `json:"high,omitempty"`
	// Raised is memory.high as the stall guard has raised it; 0 when it has not.
	Raised uint64 `json:"raised,omitempty"`

	OOMGroup *uint64 `json:"oomGroup,omitempty"`
}

// Explain turns the agent's explanations into documents.
func (s Sources) Explain(explanations []ledger.Explanation) []Explanation {
	documents := make([]Explanation, 0, len(explanations))
	view := s.View()
	moves := s.migrations(view)
	notWritten := ""
	switch config := view.Config.Config; {
	case config.RolledBack:
		notWritten = "rolled back: what was written is set back, and nothing more is written"
	case config.DryRun():
		notWritten = "dry run (profile: Observe): nothing is written"
	}
	for _, e := range explanations {
		pod, c := e.Pod, &e.Container
		d := Explanation{
			Namespace: pod.Namespace, Pod: pod.Name, QOSClass: string(pod.Class), Container: c.Name, Pinning: c.Pinning, NotWritten: notWritten, Defaults: e.Defaults, Placement: e.Placement,
			Memory: e.Memory, Values: &Values{Request: c.Request, RequestError: c.Error, Min: c.Min, Low: c.Low, High: c.High, Raised: c.Raised,
				OOMGroup: c.OOMGroup},
			PendingResize: c.PendingResize, ExclusiveCPUs: c.CPUs, CPUs: remoteCPUs(c.CPUs, c.AllocatedOn()), Migration: moves[c.Cgroup],
			MemoryPolicy: c.MemoryPolicy, MemoryPolicySource: c.PolicySource, NoMemoryPolicy: c.NoPolicy, OOMScore: c.OOMScore, NoOOMScore: c.NoOOMScore,
			Throttling: s.throttling(&e), Unused: unused(view.NodeMemory, &e), Devices: c.Devices, Rejection: e.Rejection,
		}
		if s.LastKill != nil {
			d.OOMKill = s.LastKill(pod.UID, c.Name)
		}
		documents = append(documents, d)
	}
	return documents
}

// remoteCPUs says where a container's exclusive CPUs are as seen from its memory: "2 of its 4 CPUs are on node 1, its memory
// on node 0: half of the CPUs are remote". It is empty for a container without exclusive CPUs or without an allocation.
func remoteCPUs(byNode map[int]int, memory nodeset.Set) string {
	var nodes, remote nodeset.Set
	all, far := 0, 0
	for id, n := range byNode {
		nodes = nodes.Union(nodeset.Of(id))
		if all += n; !memory.Has(id) {
			remote, far = remote.Union(nodeset.Of(id)), far+n
		}
	}
	switch {
	case all == 0 || memory.Empty():
		return ""
	case far == 0:
		return fmt.Sprintf("its CPUs (%d) are on %s, its memory on %s: none of the CPUs is remote", all, nodes.Named(), memory.Named())
	}
	verb := "are"
	if far == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of its %d CPUs %s on %s, its memory on %s: %s of the CPUs are remote", far, all, verb, remote.Named(), memory.Named(), share(far, all))
}

// share is a part for people.
func share(part, all int) string {
	switch {
	case part == all:
		return "all"
	case 2*part == all:
		return "half"
	}
	return fmt.Sprintf("%d %%", (200*part+all)/(2*all))
}

// WriteExplanations writes documents for people.
func WriteExplanations(to io.Writer, documents []Explanation) error {
	if len(documents) == 0 {
		return errors.New("there is nothing to explain")
	}
	var b strings.Builder
	for i, d := range documents {
		if i > 0 {
			fmt.Fprintln(&b)
		}
		d.write(&b)
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func (d *Explanation) write(b *strings.Builder) {
	pod := d.Pod
	if d.Namespace != "" {
		pod = d.Namespace + "/" + pod
	}
	fmt.Fprintf(b, "%s %s (%s)\n", pod, d.Container, d.QOSClass)
	if d.NotWritten != "" {
		fmt.Fprintf(b, "  %s\n", d.NotWritten)
	}
	if d.Defaults != "" {
		fmt.Fprintf(b, "  %s\n", d.Defaults)
	}
	r := d.Rejection
	unpinned := r != nil && strings.HasPrefix(d.Pinning, "not pinned: "+r.Reason)
	switch {
	case d.Pinning == "", unpinned: // never placed, or said below with the reason
	case d.Placement != nil && !d.Placement.Nodes.Empty() && d.Placement.Existing:
		fmt.Fprintf(b, "  on %s, %s\n", d.Placement.Nodes.Named(), d.Pinning)
	default:
		fmt.Fprintf(b, "  %s\n", d.Pinning)
	}
	if len(d.PendingResize) > 0 {
		fmt.Fprintf(b, "  a pending resize lacks %s: tried again when memory is released, and until then it may use all nodes\n", d.PendingResize)
	}
	if d.Migration != nil {
		fmt.Fprintf(b, "  %s\n", d.Migration)
	}
	switch {
	case d.MemoryPolicy != "":
		fmt.Fprintf(b, "  started with the memory policy %s (%s)\n", d.MemoryPolicy, d.MemoryPolicySource)
	case d.NoMemoryPolicy != "":
		fmt.Fprintf(b, "  started without a memory policy: %s\n", d.NoMemoryPolicy)
	}
	switch {
	case d.OOMScore != nil && d.OOMScore.Kubelet != nil:
		fmt.Fprintf(b, "  started with %s, in place of the kubelet's %d\n", d.OOMScore, *d.OOMScore.Kubelet)
	case d.OOMScore != nil:
		fmt.Fprintf(b, "  started with %s\n", d.OOMScore)
	case d.NoOOMScore != "":
		fmt.Fprintf(b, "  started with the kubelet's oom_score_adj: %s\n", d.NoOOMScore)
	}
	d.writeUnused(b)
	if d.CPUs != "" {
		fmt.Fprintf(b, "  %s\n", d.CPUs)
	}
	for _, device := range d.Devices {
		fmt.Fprintf(b, "  device %s (%s)\n", device, device.Source)
	}
	if d.Placement != nil && d.Placement.Aligned != "" {
		fmt.Fprintf(b, "  %s\n", d.Placement.Aligned)
	}
	last := ""
	if r != nil {
		last = r.Text
		what := fmt.Sprintf("last rejection, %s UTC (%s)", r.Last.UTC().Format(time.DateTime), r.Reason)
		if unpinned {
			what = fmt.Sprintf("%s, %s UTC", d.Pinning, r.Last.UTC().Format(time.DateTime))
		}
		fmt.Fprintf(b, "  %s:\n    %s\n", what, strings.ReplaceAll(r.Why(), "\n", "\n    "))
	}
	if v := d.OOMKill; v != nil {
		fmt.Fprintf(b, "  last OOM kill, %s UTC: %s\n", v.Time.UTC().Format(time.DateTime), v.Text())
	}
	if p := d.Placement; p != nil {
		writePlacement(b, p, last)
	}
	if len(d.Memory) > 0 {
		fmt.Fprintf(b, "  memory:\n    %s\n", strings.Join(d.Memory, "\n    "))
	}
	if d.Throttling != nil {
		fmt.Fprintf(b, "    %s\n    %s\n", d.Throttling, d.Throttling.Helps)
	}
}

// writePlacement receives the last rejection: one list of reasons is enough, and what differs now is in the candidates.
func writePlacement(b *strings.Builder, p *memorymanager.Explanation, last string) {
	switch {
	case p.Rejected != "" && p.Rejected == last:
		fmt.Fprintln(b, "  placed now, it would be rejected for the same reason")
	case p.Rejected != "" && last != "":
		fmt.Fprintln(b, "  placed now, it would be rejected, too")
	case p.Rejected != "":
		fmt.Fprintf(b, "  placed now, it would be rejected:\n    %s\n", strings.ReplaceAll(p.Rejected, "\n", "\n    "))
	case p.Existing:
		fmt.Fprintln(b, "  it keeps its allocation as long as its pod lives:")
	default:
		fmt.Fprintln(b, "  placed now, it would get:")
	}
	for _, block := range p.Blocks {
		fmt.Fprintf(b, "    %s of %s on %s\n", quantity.Short(block.Size), block.Type, block.Nodes.Named())
	}
	if p.Bounded {
		fmt.Fprintln(b, "    the search was cut short: fewer nodes may do")
	}
	candidates := p.Candidates
	if strings.Contains(p.Rejected, "\n") && (last == "" || last == p.Rejected) { // which has a line for each node
		candidates = slices.DeleteFunc(slices.Clone(candidates), func(c memorymanager.Candidate) bool { return c.Nodes.Len() == 1 })
	}
	if len(candidates) == 0 {
		return
	}
	without := ""
	if p.Existing {
		without = ", without its own allocation"
	}
	fmt.Fprintf(b, "  considered now%s:\n", without)
	w := tables.New(b)
	for _, c := range candidates {
		verdict := c.Why
		switch {
		case c.Chosen && p.Existing:
			verdict = "where it is"
		case c.Chosen:
			verdict = "would be taken"
		}
		preferred := ""
		if c.Preferred {
			preferred = "preferred"
		}
		fmt.Fprintf(w, "    %s\t%s\t%s\n", c.Nodes.Named(), preferred, verdict)
	}
	w.Flush()
	if p.Strategy != "" {
		fmt.Fprintf(b, "    %s\n", p.Strategy)
	}
}
