package verify

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// migrations finds memory of running containers that a write of cpuset.mems has moved, moves, would move in a dry run, or is not
// allowed to move.
func migrations(n Node) []Finding {
	var findings []Finding
	for _, c := range n.containers() {
		m := c.Migration
		switch {
		case m == nil || m.Bytes <= elsewhereBytes && m.State != status.Withheld:
		case m.State == status.Withheld && !n.Document.Policy.DryRun:
			findings = append(findings, Finding{Warning, "not-moved", c.object(), m.String(),
				"its memory moves to its nodes when the pod is restarted, or by itself once it is less; to have it moved while the container runs, set migration to Always or a larger upTo: the container waits meanwhile"})
		case m.State == status.Planned || m.State == status.Withheld:
			findings = append(findings, Finding{Note, "would-move", c.object(), m.String(),
				"nothing, if the container may be slower meanwhile; the configuration's key migration bounds how much is moved"})
		default:
			findings = append(findings, Finding{Note, "moved", c.object(), m.String(),
				"nothing: the container was slower meanwhile; the configuration's key migration bounds how much is moved"})
		}
	}
	return findings
}
