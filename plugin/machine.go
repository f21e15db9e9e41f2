package main

import (
	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

func newMachineCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "machine",
		Short: "Print the machine file of this node, for simulate and config check elsewhere",
		Long: `Prints what /sys and /proc say of the NUMA nodes, their memory, CPUs, huge pages and distances, and of the cores, also in a
container. What else simulate may know of a node is not there: labels, extended resources, maxPods, and the kubelet's CPUs.`,
		Example: `  nri-memory-manager machine > worker-1.yaml
  kubectl -n kube-system exec POD -- nri-memory-manager machine > worker-1.yaml`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			described, err := sysfs.Describe("")
			if err != nil {
				return err
			}
			text, err := described.Marshal()
			if err == nil {
				_, err = cmd.OutOrStdout().Write(text)
			}
			return commandline.Failed(err)
		},
	}
}
