package ledger

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// named are the needs by their names, in a fixed order.
func (n Needs) named() string {
	var names []string
	for _, need := range []struct {
		name string
		is   bool
	}{
		{"annotations", len(n.Annotations) > 0}, {"answer", n.PodInfo}, {"devices", n.Devices}, {"cpus", n.CPUs}, {"ended", len(n.Ended) > 0},
		{"claims", len(n.Claims) > 0}, {"sample", n.NodeMemory}, {"pages", len(n.PageSizes) > 0}, {"limit", n.LimitOf != ""},
		{"siblings", len(n.Siblings) > 0}, {"mems", n.MemsOf != ""}, {"files", n.FilesOf != ""}, {"usage", len(n.Usage) > 0},
		{"listed", len(n.Sandboxes) > 0}, {"unlisted", len(n.Unlisted) > 0},
	} {
		if need.is {
			names = append(names, need.name)
		}
	}
	return strings.Join(names, " ")
}

// TestWhatAnEventNeeds has the driver find out nothing, or what a test says: the needs are what is asked for first, second, and so on.
func TestWhatAnEventNeeds(t *testing.T) {
	const large = "topologyManagerPolicy: restricted\nverifyHugepages: true\n"
	web, known := claimPod("web", ""), claimPod("web", "")
	web.Annotations = map[string]string{}
	described := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
		Ref: web.Ref(), Class: memoryqos.Guaranteed, Containers: []pods.Container{{Name: "main", Request: claimGi, Limit: claimGi}},
	}}
	with := func(e CreateContainer, change func(*Container)) CreateContainer {
		change(&e.Container)
		return e
	}
	huge := with(claimed(web, "main", claimGi), func(c *Container) { c.Resources.Hugepages = []HugepageLimit{{PageSize: "2MB", Limit: 2 << 20}} })
	burstable := claimPod("burst", "burstable/")
	running := []Event{claimed(known, "main", claimGi), StartContainer{Pod: known, Container: claimed(known, "main", claimGi).Container}}
	stranger := claimed(known, "other", claimGi).Container
	limit := int64(2 * claimGi)
	resize := func(c Container) UpdateContainer {
		return UpdateContainer{Pod: known, Container: c, To: Resources{MemoryLimit: &limit}}
	}
	answered := func(g *Gathered) { g.PodInfos = map[pods.Ref]pods.Answer{web.Ref(): described} }
	ref := claims.Ref{UID: "claim"}
	claim := claims.Claim{UID: "claim", Namespace: "ns", Name: "claim", Pods: []string{"web"}, Parts: []claims.Part{{Node: 1}}}
	const first = "answer devices"
	for name, test := range map[string]struct {
		yaml   string
		before []Event
		event  Event
		found  func(*Gathered) // when it is asked first
		want   []string
	}{
		"a new pod":                 {event: RunPod{Pod: web}, want: []string{"annotations"}},
		"a pod that is known":       {before: running, event: RunPod{Pod: known}},
		"new limits":                {event: UpdatePod{Pod: web}, want: []string{"annotations"}},
		"a container":               {event: claimed(web, "main", claimGi), want: []string{"annotations " + first, "limit"}},
		"one that is described":     {before: []Event{RunPod{Pod: known}, PodFacts{UID: "web", PodInfo: described}}, event: claimed(known, "main", claimGi), want: []string{"devices"}},
		"one that is described now": {event: claimed(web, "main", claimGi), found: answered, want: []string{"annotations " + first}},
		"one beside another":        {before: running, event: claimed(known, "side", claimGi), want: []string{first, "limit siblings"}},
		"of a Burstable pod":        {before: []Event{RunPod{Pod: burstable}}, event: claimed(burstable, "main", claimGi), want: []string{first}},
		"huge pages":                {yaml: large, event: huge, want: []string{"annotations " + first, "pages limit"}},
		"that are not verified":     {event: huge, want: []string{"annotations " + first, "limit"}},
		"huge pages of nobody's":    {yaml: large, event: with(claimed(burstable, "main", claimGi), func(c *Container) { c.Resources.Hugepages = huge.Container.Resources.Hugepages }), want: []string{"annotations " + first}},
		"aligned as a whole":        {yaml: large + "topologyManagerScope: pod", event: claimed(web, "main", claimGi), want: []string{"annotations " + first + " cpus", "limit"}},
		"least-used":                {yaml: "topologyManagerPolicyOptions: {numa-allocation-strategy: least-used}", event: claimed(web, "main", claimGi), want: []string{"annotations " + first, "sample limit"}},
		"a memory policy for all":   {yaml: "unpinnedMemoryPolicy: Interleave", event: claimed(burstable, "main", claimGi), want: []string{"annotations " + first, "sample mems"}},
		"one near a device": {event: claimed(burstable, "main", claimGi), found: func(g *Gathered) {
			g.Devices = map[string][]topologymanager.Device{"main": {topologymanager.NewDevice("gpu", "a", "test", nodeset.Of(1))}}
		}, want: []string{"annotations " + first, "sample mems"}},
		"a claim of another pod's":    {yaml: "dra: {enabled: true}", before: []Event{PrepareClaim{Claim: claims.Claim{UID: "claim", Namespace: "ns", Name: "claim", Pods: []string{"old"}, Parts: claim.Parts}}}, event: with(claimed(web, "main", claimGi), func(c *Container) { c.Claims = []claims.Ref{ref} }), want: []string{"annotations " + first + " claims", "limit"}},
		"a look at one that waits":    {yaml: "dra: {enabled: true}", before: []Event{PrepareClaim{Claim: claims.Claim{UID: "claim", Namespace: "ns", Name: "claim", Pods: []string{"old"}, Parts: claim.Parts}}, StartContainer{Pod: known, Container: with(claimed(known, "main", claimGi), func(c *Container) { c.Claims = []claims.Ref{ref} }).Container}}, event: FinishUpdate{}, want: []string{"claims"}},
		"while a pod ends":            {before: append(running[:2:2], EndPod{Pod: known}), event: claimed(claimPod("other", ""), "main", claimGi), want: []string{"annotations " + first + " ended", "limit"}},
		"any event while a pod ends":  {before: append(running[:2:2], EndPod{Pod: known}), want: []string{"ended", "ended"}},
		"of a pod that has ended":     {before: append(running[:2:2], EndPod{Pod: known, Gone: true}), event: claimed(known, "main", claimGi)},
		"of nobody's pod":             {event: claimed(Pod{ID: "s", CgroupParent: "/machine.slice"}, "main", claimGi)},
		"a late one":                  {before: []Event{Connected{Epoch: 2}}, event: CreateContainer{Pod: web, Container: stranger, Header: Header{Epoch: 1, Seq: 1}}},
		"a start":                     {before: running[:1], event: running[1]},
		"a start that nobody created": {before: running, event: StartContainer{Pod: known, Container: stranger}, want: []string{"files"}},
		"a resize":                    {before: running, event: resize(claimed(known, "main", claimGi).Container), want: []string{"answer usage", "limit"}},
		"a resize of a stranger":      {before: running, event: resize(stranger), want: []string{"answer files usage", "limit siblings"}},
		"all that a runtime has":      {before: running, event: Synchronize{Pods: []Pod{claimPod("new", "")}}, want: []string{"annotations listed unlisted"}},
		"nothing of a runtime's":      {event: Synchronize{}},
		"a claim without users":       {event: PrepareClaim{Claim: claim}},
		"a claim with users":          {yaml: "dra: {enabled: true}", before: []Event{PrepareClaim{Claim: claim}, with(claimed(web, "main", claimGi), func(c *Container) { c.Claims = []claims.Ref{ref} })}, event: UnprepareClaim{UID: "claim"}, want: []string{"ended"}},
		"an end":                      {before: running, event: EndContainer{ID: "web-main"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, g := newLedger(t, test.yaml), &Gathered{}
			l.after(Connected{Epoch: 1, Runtime: Runtime{Name: "containerd", MemoryPolicies: true}})
			l.after(test.before...)
			state, err := json.Marshal(l.Snapshot())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for range 2 {
				needs := l.Needs(test.event, g)
				if needs.None() {
					break
				}
				got = append(got, needs.named())
				g.Ask(needs)
				if test.found != nil {
					test.found(g)
				}
				for _, dir := range needs.Usage {
					g.Usage = map[string]Usage{dir: {}}
				}
			}
			if strings.Join(got, "; ") != strings.Join(test.want, "; ") {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			if needs := l.Needs(test.event, g); test.event != nil && !needs.None() {
				t.Errorf("it never ends: %s", needs.named())
			}
			if after, _ := json.Marshal(l.Snapshot()); string(after) != string(state) {
				t.Errorf("a question has changed the state:\n%s\n%s", state, after)
			}
		})
	}
}

// TestWhatIsFoundOutIsAPartOfTheEvent: a replay decides by the event alone.
func TestWhatIsFoundOutIsAPartOfTheEvent(t *testing.T) {
	web := claimPod("web", "")
	web.Annotations = map[string]string{"numa.memory-manager.noderesource.dev": "none", "private": "text"}
	l, g := newLedger(t, ""), &Gathered{}
	create := claimed(web, "main", claimGi)
	g.Ask(l.Needs(create, g))
	g.PodInfos = map[pods.Ref]pods.Answer{web.Ref(): {Source: memoryqos.SourceKubelet}}
	limit := 2 * claimGi
	g.PodLimit = &limit
	g.Devices = map[string][]topologymanager.Device{"main": {topologymanager.NewDevice("gpu", "a", "test", nodeset.Of(1))}}
	decided := With(create, *g).(CreateContainer)
	if decided.Pod.Annotations != nil || decided.PodInfo.Source != memoryqos.SourceKubelet || decided.PodLimit != &limit || len(decided.Container.Devices) != 1 {
		t.Errorf("%+v", decided)
	}
	text, err := json.Marshal(decided)
	if err != nil {
		t.Fatal(err)
	}
	var replayed CreateContainer
	if err := json.Unmarshal(text, &replayed); err != nil {
		t.Fatal(err)
	}
	for _, event := range []Event{decided, replayed} {
		l := newLedger(t, "")
		l.Step(time.Unix(1, 0), event)
		if c := l.containers["web-main"]; c == nil || c.wishes().NUMA != config.NUMANone || len(c.Devices) != 1 || c.pod.MemoryLimit != limit {
			t.Errorf("%+v", c)
		}
	}
}
