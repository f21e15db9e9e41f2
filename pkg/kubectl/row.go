package kubectl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// state is what a row says of a node.
type state string

// The states, in the order of the table.
const (
	problems     state = "problems"
	noDaemon     state = "no daemon"
	notAnswering state = "not answering"
	fine         state = "ok"
)

// row is a node in the table of all nodes, and in `status -o json`.
type row struct {
	Node  string `json:"node"`
	State state  `json:"state"`
	// Message says why there is no answer.
	Message string `json:"message,omitempty"`
	Version string `json:"version,omitempty"`
	// Rejected and Unpinned count containers; Errors, Warnings and Notes are findings of verify.
	Rejected int `json:"rejected"`
	Unpinned int `json:"unpinned"`
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
	Notes    int `json:"notes"`
	// Running counts containers.
	Running int `json:"runningContainers"`
	// Free and Allocatable are bytes of memory of all NUMA nodes, huge pages aside.
	Free        uint64 `json:"freeMemory"`
	Allocatable uint64 `json:"allocatableMemory"`
}

// document is what is used of `nri-memory-manager status -o json`.
type document struct {
	Version string `json:"version"`
	Nodes   []struct {
		Memory []struct {
			Type        string `json:"type"`
			Allocatable uint64 `json:"allocatable"`
			Free        uint64 `json:"free"`
		} `json:"memory"`
	} `json:"nodes"`
	Pods []struct {
		Containers []struct {
			State    string `json:"state"`
			Unplaced string `json:"unplaced"`
		} `json:"containers"`
	} `json:"pods"`
	Rejections []struct {
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
		Container string `json:"container"`
		Refused   bool   `json:"refused"`
	} `json:"rejections"`
}

// report is what is used of `nri-memory-manager verify -o json`.
type report struct {
	Findings []struct {
		Severity string `json:"severity"`
	} `json:"findings"`
}

// survey asks all nodes; those with problems come first.
func (c *cluster) survey(ctx context.Context) ([]row, error) {
	rows, err := each(ctx, c, func(ctx context.Context, node string, d *daemon, err error) row {
		r := row{Node: node, State: fine}
		if err == nil {
			err = c.fill(ctx, d, &r)
		}
		if none, ok := errors.AsType[silence](err); ok {
			r.State, r.Message = none.state, printable(none.why)
		} else if err != nil {
			r.State, r.Message = notAnswering, printable(err.Error())
		}
		return r
	})
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Node, b.Node)) })
	return rows, err
}

// fill puts a daemon's answers into its row.
func (c *cluster) fill(ctx context.Context, d *daemon, r *row) error {
	var now document
	var audit report
	if err := c.decode(ctx, d, &now, "status"); err != nil {
		return err
	}
	if err := c.decode(ctx, d, &audit, "verify"); err != nil {
		return err
	}
	r.count(now, audit)
	return nil
}

func (c *cluster) decode(ctx context.Context, d *daemon, answer any, command string) error {
	out, err := c.ask(ctx, d, command, "--output=json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out.text, answer); err != nil {
		return fmt.Errorf("the daemon on node %s (pod %s/%s) has another format of %s: %w", d.node, d.namespace, d.pod, command, err)
	}
	return nil
}

func (r *row) count(now document, audit report) {
	r.Version = inLine(now.Version)
	for _, node := range now.Nodes {
		for _, memory := range node.Memory {
			if memory.Type == "memory" {
				r.Free, r.Allocatable = r.Free+memory.Free, r.Allocatable+memory.Allocatable
			}
		}
	}
	for _, pod := range now.Pods {
		for _, c := range pod.Containers {
			if c.State == "running" {
				r.Running++
			}
			if c.Unplaced != "" {
				r.Unpinned++
			}
		}
	}
	rejected := map[[3]string]bool{} // one container may be rejected for several reasons
	for _, no := range now.Rejections {
		if no.Refused {
			rejected[[3]string{no.Namespace, no.Pod, no.Container}] = true
		}
	}
	r.Rejected = len(rejected)
	for _, f := range audit.Findings {
		switch f.Severity {
		case "error":
			r.Errors++
		case "warning":
			r.Warnings++
		default:
			r.Notes++
		}
	}
	if r.Rejected+r.Unpinned+r.Errors+r.Warnings > 0 {
		r.State = problems
	}
}

// rank returns the place of a node in the table: the index of the first condition that is true.
func (r *row) rank() int {
	return slices.Index([]bool{r.Rejected > 0, r.Unpinned > 0, r.Errors > 0, r.State == problems, r.State == noDaemon, r.State == notAnswering, true}, true)
}

func (r *row) what() string {
	if r.State != problems {
		if r.Message == "" {
			return string(r.State)
		}
		return string(r.State) + ": " + inLine(r.Message)
	}
	var parts []string
	count := func(n int, one, many string) {
		switch n {
		case 0:
		case 1:
			parts = append(parts, "1 "+one)
		default:
			parts = append(parts, fmt.Sprint(n, " ", many))
		}
	}
	count(r.Rejected, "rejected", "rejected")
	count(r.Unpinned, "unpinned", "unpinned")
	count(r.Errors, "error", "errors")
	count(r.Warnings, "warning", "warnings")
	return strings.Join(parts, ", ")
}

// writeRows writes the table for people. What is wrong comes last in a line: it may be long.
func writeRows(to io.Writer, rows []row) error {
	w := tables.New(to)
	fmt.Fprintln(w, "NODE\tCONTAINERS\tFREE\tALLOCATABLE\tVERSION\tSTATE")
	for _, r := range rows {
		running, free, allocatable := "-", "-", "-"
		if r.State == fine || r.State == problems {
			running, free, allocatable = fmt.Sprint(r.Running), quantity.Short(r.Free), quantity.Short(r.Allocatable)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Node, running, free, allocatable, tables.OrDash(r.Version), r.what())
	}
	return w.Flush()
}
