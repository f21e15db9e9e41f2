package kubectl

import (
	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

func newExplainCommand(o *options) *cobra.Command {
	var container, format string
	cmd := &cobra.Command{
		Use:   "explain [NAMESPACE/]POD",
		Short: "Say why a pod's containers are where they are, or why not, and how their values come about",
		Long: `Explain prints what "nri-memory-manager explain" says on the pod's node: why each container of the pod has its NUMA nodes or was
rejected, and the arithmetic of memory.min, memory.low and memory.high.`,
		Example: `  kubectl memory-manager explain database
  kubectl memory-manager explain database -n shop -c postgres
  kubectl memory-manager explain database -n shop -o json`,
		Args: commandline.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, namespace, pod, err := o.connect(args)
			if err != nil {
				return err
			}
			what := namespace + "/" + pod
			if container != "" {
				what += "/" + container
			}
			return c.showPod(cmd.Context(), cmd.OutOrStdout(), namespace, pod, "explain", what, "--output="+format)
		},
	}
	cmd.Flags().StringVarP(&container, "container", "c", "", "the only container to explain")
	commandline.AddOutput(cmd, &format, "text", "json", "yaml")
	return cmd
}
