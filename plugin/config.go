package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

func newConfigCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or show what it comes to",
		Long: `The configuration is one YAML file with the kubelet's names for what the kubelet has too. Without a file the defaults
hold.`,
		Example: `  nri-memory-manager config check /etc/nri/memory-manager/config.yaml
  nri-memory-manager config show`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(newConfigCheckCommand(), newConfigShowCommand())
	return command
}

func newConfigCheckCommand() *cobra.Command {
	var (
		machinePath, format string
		api                 apiOptions
	)
	command := &cobra.Command{
		Use:   "check FILE…",
		Short: "Check configuration files against this machine or another one",
		Long: `Reads each file, or standard input for "-", as the daemon would and applies it to a machine. Everything in it that keeps "run"
from starting is named with file, line and key, one line each; what is only doubtful is a warning.

Of a chart with node groups, check the ConfigMaps one by one, or render it with --set-json nodeGroups=[] to have the one of config. The file in
kubeletConfig is read here, too: of a chart that mounts it, render without (--set kubeletConfig=) or put the file's own path in its place.

Exit status: 0 all are valid, 2 one is not.`,
		Example: `  nri-memory-manager config check /etc/nri/memory-manager/config.yaml
  nri-memory-manager config check config.yaml --machine two-nodes.yaml
  helm template my-chart --show-only templates/configmap.yaml | yq -r '.data["config.yaml"]' | nri-memory-manager config check -`,
		Args: commandline.Args(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := api.check(); err != nil {
				return err
			}
			m, err := sysfs.Load(machinePath)
			if err != nil {
				return err
			}
			all := make([]checked, len(args))
			errs := make([]error, len(args))
			for i, file := range args {
				all[i], errs[i] = api.checkConfig(file, m, cmd.InOrStdin())
			}
			err = commandline.Write(cmd.OutOrStdout(), format, all, func(to io.Writer) error { return writeChecked(to, all) })
			return cmp.Or(commandline.Failed(err), strictyaml.Join(errs...))
		},
	}
	api.addTo(command)
	commandline.AddOutput(command, &format, "text", "json", "yaml")
	command.Flags().StringVar(&machinePath, "machine", "", "machine file, or folder with a copy of sys and proc, instead of this machine")
	return command
}

func newConfigShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print the effective configuration: the file, what it takes over from the kubelet, and the defaults",
		Long:  `Prints every key of the file, or of standard input for "-", with the value that holds, without a look at this machine; that is "config check".`,
		Example: `  nri-memory-manager config show
  nri-memory-manager config show /etc/nri/memory-manager/config.yaml`,
		Args: commandline.Args(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := config.Default()
			if len(args) == 1 {
				file, read := orStdin(args[0], cmd.InOrStdin())
				var err error
				if c, err = read.Load(file); err != nil {
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

// checked is what a configuration comes to on a machine: the contract of `config check -o json`.
type checked struct {
	File     string        `json:"file"`
	Valid    bool          `json:"valid"`
	Errors   []string      `json:"errors"`
	Warnings []string      `json:"warnings"`
	Nodes    []checkedNode `json:"nodes"` // without placement none
}

// checkedNode is a NUMA node's memory in bytes.
type checkedNode struct {
	ID          int    `json:"id"`
	Total       uint64 `json:"total"`
	Reserved    uint64 `json:"reserved"`
	HugePages   uint64 `json:"hugePages"`
	Allocatable uint64 `json:"allocatable"`
	// ForClaims is what resource claims may have of Allocatable; nil unless the configuration enables claims.
	ForClaims *uint64 `json:"forClaims,omitempty"`
}

// orStdin is how a file is named and read: "-" is standard input.
func orStdin(file string, in io.Reader) (string, config.Files) {
	if file != "-" {
		return file, files
	}
	const name = "standard input"
	return name, func(path string) ([]byte, error) {
		if path != name {
			return files(path)
		}
		text, err := io.ReadAll(in)
		if written := strings.TrimSpace(string(text)); err == nil && (written == "" || written == "null") { // what yq prints where there is none
			err = errors.New(name + " has nothing in it")
		}
		return text, err
	}
}

// checkConfig checks a file, or standard input for "-". The error has all that keeps the daemon from starting.
func (o *apiOptions) checkConfig(file string, m machine.Machine, in io.Reader) (checked, error) {
	file, read := orStdin(file, in)
	resolved, err := read.Check(file, m)
	warnings, clients := o.checkClients(resolved.Config)
	err = strictyaml.Join(err, clients)
	c := checked{File: file, Valid: err == nil, Errors: []string{}, Warnings: append([]string{}, append(resolved.Warnings, warnings...)...), Nodes: []checkedNode{}}
	for _, one := range strictyaml.List(err) {
		c.Errors = append(c.Errors, one.Error())
	}
	for _, node := range slices.Concat(resolved.Nodes, resolved.ClaimNodes) {
		n := checkedNode{ID: node.ID, Total: node.Total}
		for _, amount := range node.Reserved {
			if amount.Type == memorymanager.Memory {
				n.Reserved = amount.Bytes
			}
		}
		for _, pool := range node.Pools {
			n.HugePages += pool.PageSize * pool.Count
		}
		n.Allocatable = n.Total - n.Reserved - n.HugePages
		for _, claimable := range resolved.Claimable {
			if claimable.Node == n.ID {
				n.ForClaims = new(claimable.Amounts.Of(memorymanager.Memory))
			}
		}
		c.Nodes = append(c.Nodes, n)
	}
	slices.SortFunc(c.Nodes, func(a, b checkedNode) int { return a.ID - b.ID })
	return c, err
}

// writeChecked writes the valid ones for people; the others are errors.
func writeChecked(to io.Writer, all []checked) error {
	table := tables.New(to)
	for _, c := range all {
		if !c.Valid {
			continue
		}
		for _, warning := range c.Warnings {
			fmt.Fprintf(table, "warning: %s\n", warning)
		}
		fmt.Fprintf(table, "%s is valid.\n", c.File)
		for i, n := range c.Nodes {
			title, forClaims := "", ""
			if n.ForClaims != nil {
				title, forClaims = "\tFOR CLAIMS", "\t"+quantity.Short(*n.ForClaims)
			}
			if i == 0 {
				fmt.Fprintln(table, "NODE\tTOTAL\tRESERVED\tHUGE PAGES\tALLOCATABLE"+title)
			}
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s%s\n", n.ID, quantity.Short(n.Total), quantity.Short(n.Reserved), quantity.Short(n.HugePages), quantity.Short(n.Allocatable), forClaims)
		}
		table.Flush()
	}
	return table.Flush()
}
