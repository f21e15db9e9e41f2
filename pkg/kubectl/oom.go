package kubectl

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

func newOOMCommand(o *options) *cobra.Command {
	var node, format string
	cmd := &cobra.Command{
		Use:   "oom [[NAMESPACE/]POD]",
		Short: "Say why the kernel killed processes of a pod's containers, or of a node's, and what to change",
		Long:  `OOM prints what "nri-memory-manager oom" says on the pod's node, or on the node that --node names.`,
		Example: `  kubectl memory-manager oom web -n shop
  kubectl memory-manager oom --node worker-1`,
		Args: commandline.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (node != "") {
				return errors.New("want a pod or --node: verdicts are kept on the nodes")
			}
			c, namespace, pod, err := o.connect(args)
			if err != nil {
				return err
			}
			if node != "" {
				return c.show(cmd.Context(), cmd.OutOrStdout(), node, "oom", "--output="+format)
			}
			return c.showPod(cmd.Context(), cmd.OutOrStdout(), namespace, pod, "oom", namespace+"/"+pod, "--output="+format)
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the node to show")
	commandline.AddOutput(cmd, &format, "text", "json", "yaml")
	return cmd
}
