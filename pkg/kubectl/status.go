package kubectl

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/printer"
)

func newStatusCommand(o *options) *cobra.Command {
	var (
		node, format string
		all          bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is wrong on all nodes, or the NUMA map and the containers of one",
		Long: `Status prints a line for each node of the cluster, those with problems first: rejected and unpinned containers, findings of
verify, nodes without a daemon, daemons that do not answer. With --node it prints what "nri-memory-manager status" shows there.`,
		Example: `  kubectl memory-manager status
  kubectl memory-manager status -o json | jq -r '.[] | select(.state != "ok") | .node'
  kubectl memory-manager status --node worker-1 -o wide`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := printer.Check(format, "table", "wide", "json", "yaml"); err != nil {
				return err
			}
			if all && node != "" {
				return errors.New("--node and --all-nodes: want one of them")
			}
			c, _, err := o.connect()
			if err != nil {
				return err
			}
			if node != "" {
				return c.statusOf(cmd.Context(), cmd.OutOrStdout(), node, format)
			}
			rows, err := c.survey(cmd.Context())
			if err != nil {
				return err
			}
			return printer.Write(cmd.OutOrStdout(), format, rows, func(to io.Writer) error { return writeRows(to, rows) })
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the only node to show")
	cmd.Flags().BoolVar(&all, "all-nodes", false, "show all nodes, as without --node")
	printer.AddFlag(cmd, &format, "table", "wide", "json", "yaml")
	return cmd
}

// statusOf prints the status of one node.
func (c *cluster) statusOf(ctx context.Context, to io.Writer, node, format string) error {
	d, err := c.daemonOn(ctx, node)
	if err != nil {
		return err
	}
	out, err := c.ask(ctx, d, []int{exitOK}, "status", "--output="+format)
	if err != nil {
		return err
	}
	_, err = to.Write(out.text)
	return err
}
