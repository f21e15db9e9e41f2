package kubectl

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/printer"
)

func newExplainCommand(o *options) *cobra.Command {
	var container, format string
	cmd := &cobra.Command{
		Use:   "explain POD",
		Short: "Say why a pod's containers are where they are, or why not, and how their values come about",
		Long: `Explain prints what "nri-memory-manager explain" says on the pod's node: why each container of the pod has its NUMA nodes or was
rejected, and the arithmetic of memory.min, memory.low and memory.high.`,
		Example: `  kubectl memory-manager explain database
  kubectl memory-manager explain database -n shop -c postgres
  kubectl memory-manager explain database -n shop -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := printer.Check(format, "text", "json", "yaml"); err != nil {
				return err
			}
			c, namespace, err := o.connect()
			if err != nil {
				return err
			}
			return c.explain(cmd.Context(), cmd.OutOrStdout(), namespace, args[0], container, format)
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "the only container to explain")
	printer.AddFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

// explain prints the explanation of a pod, or of one of its containers.
func (c *cluster) explain(ctx context.Context, to io.Writer, namespace, pod, container, format string) error {
	node, err := c.nodeOf(ctx, namespace, pod)
	if err != nil {
		return err
	}
	d, err := c.daemonOn(ctx, node)
	if err != nil {
		return err
	}
	what := namespace + "/" + pod
	if container != "" {
		what += "/" + container
	}
	out, err := c.ask(ctx, d, []int{exitOK}, "explain", what, "--output="+format)
	if err != nil {
		return err
	}
	_, err = to.Write(out.text)
	return err
}
