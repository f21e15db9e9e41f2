package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// newConfigCommand returns the command "config".
func newConfigCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or show what it comes to",
		Long: `The configuration is one YAML file with the kubelet's names for what the kubelet has too. Without a file the defaults
hold.`,
		Example: `  nri-memory-manager config check /etc/nri-memory-manager/config.yaml
  nri-memory-manager config show`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(newConfigCheckCommand(), newConfigShowCommand())
	return command
}

func newConfigCheckCommand() *cobra.Command {
	var (
		machinePath string
		api         apiOptions
	)
	command := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file against this machine or another one",
		Long: `Reads the file as the daemon would and applies it to a machine. Everything in it that keeps "run" from starting is named
with file, line and key, one line each; what is only doubtful is a warning.`,
		Example: `  nri-memory-manager config check /etc/nri-memory-manager/config.yaml
  nri-memory-manager config check config.yaml --machine two-nodes.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := api.check(); err != nil {
				return err
			}
			m, err := sysfs.Load(machinePath)
			if err != nil {
				return err
			}
			resolved, err := files.Check(args[0], m)
			warnings, clients := api.checkClients(resolved.Config)
			if err := strictyaml.Join(err, clients); err != nil {
				return err
			}
			resolved.Warnings = append(resolved.Warnings, warnings...)
			return printResolved(cmd.OutOrStdout(), args[0], resolved)
		},
	}
	api.addTo(command)
	command.Flags().StringVar(&machinePath, "machine", "", "machine file, or folder with a copy of sys and proc, instead of this machine")
	return command
}

func newConfigShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print the effective configuration: the file, what it takes over from the kubelet, and the defaults",
		Long:  `Prints every key with the value that holds, without a look at this machine; that is "config check".`,
		Example: `  nri-memory-manager config show
  nri-memory-manager config show /etc/nri-memory-manager/config.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := config.Default()
			if len(args) == 1 {
				var err error
				if c, err = files.Load(args[0]); err != nil {
					return err
				}
			}
			text, err := c.Marshal()
			if err != nil {
				return commandline.Failed(err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return commandline.Failed(err)
		},
	}
}

// printResolved shows what a configuration comes to on a machine.
func printResolved(out io.Writer, file string, r config.Resolved) error {
	for _, warning := range r.Warnings {
		fmt.Fprintf(out, "warning: %s\n", warning)
	}
	fmt.Fprintf(out, "%s is valid.\n", file)
	if !r.Static {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tMEMORY\tRESERVED\tHUGE PAGES\tALLOCATABLE")
	for _, node := range r.Nodes {
		var reserved, pools uint64
		for _, amount := range node.Reserved {
			if amount.Type == memorymanager.Memory {
				reserved = amount.Bytes
			}
		}
		for _, pool := range node.Pools {
			pools += pool.PageSize * pool.Count
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\n", node.ID, quantity.Format(node.Total), quantity.Format(reserved),
			quantity.Format(pools), quantity.Format(node.Total-reserved-pools))
	}
	return commandline.Failed(table.Flush())
}
