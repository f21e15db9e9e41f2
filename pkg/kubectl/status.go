package kubectl

import (
	"errors"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

func newStatusCommand(o *options) *cobra.Command {
	var (
		node, format  string
		all, problems bool
	)
	cmd := &cobra.Command{
		Use:   "status [[NAMESPACE/]POD]",
		Short: "Show what is wrong on all nodes, or the NUMA map and the containers of one node or pod",
		Long: `Status prints a line for each node of the cluster, those with problems first: rejected and unpinned containers, findings of
verify, nodes without a daemon, daemons that do not answer. With --node, or with a pod on its node, it prints what
"nri-memory-manager status" shows there, with --node and --namespace of that namespace only. With --problems it leaves out nodes, or
what is on the node, without problems.`,
		Example: `  kubectl memory-manager status
  kubectl memory-manager status -o json | jq -r '.[] | select(.state != "ok") | .node'
  kubectl memory-manager status database -n shop
  kubectl memory-manager status --node worker-1 -o wide
  kubectl memory-manager status --node worker-1 --problems`,
		Args: commandline.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && node != "":
				return errors.New("--node and --all-nodes: want one of them")
			case len(args) == 1 && (all || node != ""):
				return errors.New("--node and --all-nodes are for all pods of a node: a pod's own node is found")
			}
			c, namespace, pod, err := o.connect(args)
			if err != nil {
				return err
			}
			flags := []string{"--output=" + format}
			if problems {
				flags = append(flags, "--problems")
			}
			switch {
			case len(args) == 1:
				flags = append([]string{namespace + "/" + pod}, flags...)
				return c.showPod(cmd.Context(), cmd.OutOrStdout(), namespace, pod, "status", flags...)
			case node != "":
				if cmd.Flags().Changed("namespace") {
					flags = append(flags, "--namespace="+namespace)
				}
				return c.show(cmd.Context(), cmd.OutOrStdout(), node, "status", flags...)
			}
			rows, err := c.survey(cmd.Context())
			if err != nil {
				return err
			}
			if problems {
				rows = withProblems(rows)
			}
			return commandline.Write(cmd.OutOrStdout(), format, rows, func(to io.Writer) error { return writeRows(to, rows) })
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the only node to show")
	cmd.Flags().BoolVar(&all, "all-nodes", false, "show all nodes, as without --node")
	cmd.Flags().BoolVar(&problems, "problems", false, "show only what is not as it should be")
	commandline.AddOutput(cmd, &format, "table", "wide", "json", "yaml")
	return cmd
}

func withProblems(rows []row) []row {
	return slices.DeleteFunc(rows, func(r row) bool { return r.State == fine })
}
