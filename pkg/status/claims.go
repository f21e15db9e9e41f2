package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// Claims is what resource claims may have and have on this node.
type Claims struct {
	// Driver is the name that DeviceClasses select.
	Driver    string            `json:"driver"`
	Claimable []claims.Capacity `json:"claimable"`
	// Unmapped says why claims do not count as requests of their pods although dra.publishNodeAllocatable is set.
	Unmapped string `json:"notNodeAllocatable,omitempty"`
	// Ending is set if a reload has turned claims off: nothing is published, and the next start ends the driver.
	Ending   bool    `json:"ending,omitempty"`
	Prepared []Claim `json:"prepared"`
}

// Claim is a resource claim that is prepared: its memory is allocated, whether or not a container uses it.
type Claim struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	UID       string        `json:"uid"`
	Pods      []string      `json:"podUIDs"`
	Devices   []ClaimDevice `json:"devices"`
}

// ClaimDevice is claims.Part, what a claim has of one NUMA node.
type ClaimDevice struct {
	Request string                `json:"request"`
	Node    int                   `json:"numaNode"`
	Amounts memorymanager.Request `json:"amounts"`
}

// claimsOf are nil unless the configuration enables them.
func claimsOf(view *ledger.View) *Claims {
	c := view.Config.Config.DRA
	if !c.Enabled {
		return nil
	}
	document := &Claims{Driver: claims.Driver, Claimable: append([]claims.Capacity{}, view.Claimable...), Ending: c.Ending, Prepared: []Claim{}}
	for _, from := range view.Claims {
		claim := Claim{Namespace: from.Namespace, Name: from.Name, UID: from.UID, Pods: from.Pods}
		for _, part := range from.Parts {
			claim.Devices = append(claim.Devices, ClaimDevice(part))
		}
		document.Prepared = append(document.Prepared, claim)
	}
	return document
}

func (d *Document) writeClaims(b *strings.Builder) {
	if d.Claims == nil {
		return
	}
	title := "RESOURCE CLAIMS"
	if d.Claims.Ending {
		title += "   (turned off: nothing is published; restart the plugin once no pod has a claim)"
	}
	fmt.Fprintln(b, title)
	w := tables.New(b)
	fmt.Fprintln(w, "NODE\tTYPE\tFOR CLAIMS\tCLAIMED\tFREE")
	for _, m := range d.Claims.Claimable {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", m.Node, m.Type, quantity.Short(m.Capacity), quantity.Short(m.Claimed), quantity.Short(m.Capacity-min(m.Capacity, m.Claimed)))
	}
	w.Flush()
	var rows []string
	for _, c := range d.Claims.Prepared {
		var parts []claims.Part
		for _, device := range c.Devices {
			parts = append(parts, claims.Part(device))
		}
		rows = append(rows, fmt.Sprintf("%s/%s\t%s\t%s\t%s", c.Namespace, c.Name, claims.Nodes(parts), claims.Sum(parts), tables.OrDash(strings.Join(d.usersOf(c), ", "))))
	}
	fmt.Fprintln(b, tables.Columns("CLAIM\tNODES\tMEMORY\tUSED BY", rows...))
}

// usersOf are the living containers that use a claim, as POD/CONTAINER.
func (d *Document) usersOf(claim Claim) (users []string) {
	for pod, c := range d.Containers() {
		if c.State != Stopped && slices.Contains(c.Claims, claim.Namespace+"/"+claim.Name) {
			users = append(users, pod.Name+"/"+c.Name)
		}
	}
	return users
}
