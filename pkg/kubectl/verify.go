package kubectl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

func newVerifyCommand(o *options) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "verify [[NAMESPACE/]POD]",
		Short: "Audit a pod, a node or all nodes: is what was promised to containers what the kernel does for them",
		Long: `Verify prints what "nri-memory-manager verify" finds: about a pod and its node, about the node that --node names, or without
either about every node, those with findings first. It changes nothing.

Exit status: 0 nothing but notes, 1 errors or warnings, or a node without an answer, 2 bad input.`,
		Example: `  kubectl memory-manager verify database -n shop
  kubectl memory-manager verify --node worker-1
  kubectl memory-manager verify`,
		Args: commandline.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && node != "" {
				return errors.New("--node is for all pods of a node: a pod's own node is found")
			}
			c, namespace, pod, err := o.connect(args)
			switch {
			case err != nil:
				return err
			case len(args) == 1:
				return c.showPod(cmd.Context(), cmd.OutOrStdout(), namespace, pod, "verify", namespace+"/"+pod)
			case node != "":
				return c.show(cmd.Context(), cmd.OutOrStdout(), node, "verify")
			}
			return c.verifyAll(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the node to audit")
	return cmd
}

// verifyAll prints the reports of all nodes: first those without an answer, then those with findings.
func (c *cluster) verifyAll(ctx context.Context, to io.Writer) error {
	type report struct {
		node, text string
		code       int
	}
	reports, err := each(ctx, c, func(ctx context.Context, node string, d *daemon, err error) report {
		var out output
		if err == nil {
			out, err = c.ask(ctx, d, "verify")
		}
		if err != nil {
			return report{node, printable(err.Error()) + "\n", commandline.ExitBadInput}
		}
		return report{node, string(out.text), out.code}
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(reports, func(a, b report) int { return cmp.Compare(b.code, a.code) })
	var text bytes.Buffer
	worst := commandline.ExitOK
	for i, r := range reports {
		if i > 0 {
			fmt.Fprintln(&text)
		}
		fmt.Fprintf(&text, "NODE %s\n%s", r.node, r.text)
		worst = max(worst, r.code)
	}
	if _, err := text.WriteTo(to); err != nil {
		return commandline.Failed(err)
	}
	if worst != commandline.ExitOK {
		return commandline.ErrFindings
	}
	return nil
}
