package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/verify"
)

// defaultKubeletConfig is where kubeadm and most distributions put the kubelet's configuration.
const defaultKubeletConfig = "/var/lib/kubelet/config.yaml"

func newVerifyCommand() *cobra.Command {
	var (
		o                              hostOptions
		machine, kubeletConfig, format string
		namespace                      string
	)
	cmd := &cobra.Command{
		Use:   "verify [[NAMESPACE/]POD]",
		Short: "Audit this node: is what was promised to containers what the kernel does for them",
		Long: `Verify asks the running daemon what it has promised, reads the kernel's files, and names what does not agree: protection
that a cgroup above cancels, pages on other NUMA nodes than allocated, huge pages that others have taken, other writers of the
same files, settings of the kubelet that conflict, and known problems of this kernel and runtime. It changes nothing.

With a pod, given by namespace and name, by its name alone, or by its UID, it leaves out what it finds about other pods.

Each finding says what to do. Exit status: 0 nothing but notes, 1 errors or warnings, no daemon or no such pod, 2 bad input.`,
		Example: `  nri-memory-manager verify
  nri-memory-manager verify default/database
  nri-memory-manager verify -o json | jq -r '.findings[] | select(.severity == "error") | .object'
  nri-memory-manager verify --kubelet-config /etc/kubernetes/kubelet.yaml`,
		Args:              commandline.Args(0, 1),
		ValidArgsFunction: completePod(&o.stateDir, podWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			places := verify.Places{Plain: o.plainCgroups, StateDir: o.stateDir,
				KubeletConfig: kubeletConfig, KubeletWanted: cmd.Flags().Changed("kubelet-config")}
			pod, err := commandline.Pod(args, namespace)
			if err == nil && pod == "" && namespace != "" {
				err = errors.New("--namespace is a pod's: want a pod, too")
			}
			if err != nil {
				return err
			}
			if places.Sys, places.Proc, err = sysfs.Roots(machine); err != nil {
				return err
			}
			var document status.Document
			if err := ask(cmd.Context(), o.stateDir, "/status", nil, &document); err != nil {
				return commandline.Failed(err)
			}
			if file := document.Policy.KubeletConfig; file != "" && !places.KubeletWanted {
				places.KubeletConfig = file
			}
			tree, err := o.openTree()
			if err != nil {
				return err
			}
			defer tree.Close()
			places.Tree = tree
			node, err := places.Gather(document)
			if err != nil {
				return err
			}
			if pod != "" {
				if node, err = node.Of(pod); err != nil {
					return commandline.Failed(err)
				}
			}
			report := verify.Run(node)
			if err := commandline.Write(cmd.OutOrStdout(), format, report, func(to io.Writer) error { return report.WriteText(to) }); err != nil {
				return commandline.Failed(err)
			}
			if !report.Clean() {
				return commandline.ErrFindings
			}
			return nil
		},
	}
	flags := cmd.Flags()
	addDaemon(cmd, &o.stateDir, &namespace, "the pod's namespace")
	flags.StringVar(&o.cgroups, "cgroups", defaultCgroups, "where the cgroup v2 hierarchy is mounted")
	flags.BoolVar(&o.plainCgroups, "plain-cgroups", false, "take --cgroups for a folder tree that only looks like cgroups (tests, simulation)")
	flags.StringVar(&machine, "machine", "", "folder with a copy of sys and proc to read in place of this machine's; with a machine file huge pages and kernel are left out")
	flags.StringVar(&kubeletConfig, "kubelet-config", defaultKubeletConfig, "the kubelet's configuration file; where it is not given and the daemon takes settings from one, that one")
	commandline.AddOutput(cmd, &format, "text", "json", "yaml")
	return cmd
}
