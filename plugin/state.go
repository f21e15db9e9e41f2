package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

func newStateCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "state",
		Short: "Take over, hand back, show or verify the state file of a Memory Manager",
		Long: `The plugin keeps its allocations in the format of the kubelet's /var/lib/kubelet/memory_manager_state, so that a node
can move from the kubelet's Memory Manager to the plugin and back.`,
		Example: `  nri-memory-manager state import /var/lib/kubelet/memory_manager_state
  nri-memory-manager state show /var/lib/nri-memory-manager/memory_manager_state`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(newStateImportCommand(), newStateExportCommand(), newStateShowCommand(), newStateVerifyCommand())
	return command
}

func addStateDir(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "state-dir", defaultStateDir, "folder of the plugin's state file")
}

func newStateImportCommand() *cobra.Command {
	var (
		stateDir string
		force    bool
	)
	command := &cobra.Command{
		Use:   "import FILE",
		Short: "Make a kubelet's state file the plugin's",
		Long: `Reads a state file of a kubelet, checks it, and writes it as the plugin's. Stop the plugin and the kubelet first.
The next start of the plugin takes the allocations over; containers that are gone by then are dropped.

A plugin that runs has taken in the running containers where they are. Nothing is written then: containers that the file has on
other NUMA nodes are listed, and the exit status is 1. In Kubernetes use the chart's kubeletState, before the first start.`,
		Example: `  nri-memory-manager state import /var/lib/kubelet/memory_manager_state`,
		Args:    commandline.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := checkpoint.ReadFile(args[0])
			if err != nil {
				return err
			}
			store, err := checkpoint.Open(stateDir)
			if err != nil {
				return err
			}
			defer store.Close()
			kept, err := checkpoint.Import(store, file, force)
			if errors.Is(err, checkpoint.ErrInUse) {
				return compareWithDaemon(cmd.Context(), cmd.OutOrStdout(), stateDir, args[0], file, err)
			}
			if err != nil {
				return err
			}
			if kept != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "The state file that was there is now %s.\n", kept)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Took over %d containers of %s into %s.\n", len(file.State.Entries), args[0], store.Path())
			return nil
		},
	}
	addStateDir(command, &stateDir)
	command.Flags().BoolVar(&force, "force", false, "replace a state file that has containers; it is kept aside")
	return command
}

// newestState is what the running daemon has allocated. Without a daemon, or with one that allocates nothing, it is what the state file has.
func newestState(ctx context.Context, stateDir string) (checkpoint.File, error) {
	var text json.RawMessage
	var refused refusal
	err := ask(ctx, stateDir, "/state", nil, &text)
	switch {
	case err == nil:
		return checkpoint.Decode(text)
	case errors.Is(err, errNoDaemon) || errors.As(err, &refused):
		return checkpoint.ReadFile(filepath.Join(stateDir, checkpoint.FileName))
	}
	return checkpoint.File{}, commandline.Failed(err)
}

// compareWithDaemon lists the containers of a kubelet's state file that the running daemon does not have as the file has them.
func compareWithDaemon(ctx context.Context, out io.Writer, stateDir, path string, theirs checkpoint.File, inUse error) error {
	ours, err := newestState(ctx, stateDir)
	if errors.Is(err, fs.ErrNotExist) { // it allocates nothing
		return inUse
	}
	if err != nil {
		return err
	}
	blocks := map[[2]string][]memorymanager.Block{}
	for _, entry := range ours.State.Entries {
		blocks[[2]string{entry.Pod, entry.Container}] = entry.Blocks
	}
	same, differ, missing := 0, 0, 0
	for _, entry := range theirs.State.Entries {
		has, there := blocks[[2]string{entry.Pod, entry.Container}]
		switch here, file := nodesOf(has), nodesOf(entry.Blocks); {
		case there && here == file:
			same++
		case there:
			differ++
			fmt.Fprintf(out, "container %s of pod %s: %s here, %s in the file\n", entry.Container, entry.Pod, here, file)
		default:
			missing++
			fmt.Fprintf(out, "container %s of pod %s: no allocation here: it does not run, or is not pinned\n", entry.Container, entry.Pod)
		}
	}
	switch {
	case differ > 0:
		return commandline.Failed(fmt.Errorf("nothing is imported from %s: the running plugin has these containers otherwise; to have them as in the file "+
			"stop the plugin and import again with --force, or leave them where they are", path))
	case same == 0 && missing > 0:
		return commandline.Failed(fmt.Errorf("nothing is imported from %s: the running plugin has none of its containers; is it this node's?", path))
	}
	fmt.Fprintf(out, "Nothing to import: the running plugin has %d containers of %s as they are there.\n", same, path)
	return nil
}

// nodesOf says how much is where.
func nodesOf(blocks []memorymanager.Block) string {
	var texts []string
	for _, block := range blocks {
		texts = append(texts, fmt.Sprintf("%s %s on node %s", quantity.Format(block.Size), block.Type, block.Nodes))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

func newStateExportCommand() *cobra.Command {
	var stateDir, output, target string
	command := &cobra.Command{
		Use:   "export",
		Short: "Write the plugin's state as a kubelet accepts it",
		Long: `Prints what the running plugin has allocated, else what its state file has, without anything that is the plugin's own. A state that a kubelet would refuse at its
start is not written: what is wrong is listed, and the exit status is 1.

While no pod has an allocation of its own (podLevelResourceManagers), every kubelet reads the file. Otherwise --for names the
version that is to read it, and the kubelet needs its feature gate PodLevelResourceManagers.`,
		Example: `  nri-memory-manager state export -o /var/lib/kubelet/memory_manager_state
  nri-memory-manager state export --for 1.37 -o /var/lib/kubelet/memory_manager_state`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if v, err := utilversion.ParseGeneric(target); err == nil {
				target = fmt.Sprintf("%d.%d", v.Major(), v.Minor())
			}
			if target != "" && !slices.Contains(checkpoint.Targets, target) {
				return fmt.Errorf("--for %q: want a kubelet's version, one of %s; older ones read what 1.35 reads", target, strings.Join(checkpoint.Targets, ", "))
			}
			if followed, err := filepath.EvalSymlinks(output); err == nil && output != "" {
				output = followed
			}
			if info, err := os.Lstat(output); err == nil && !info.Mode().IsRegular() { // it would be replaced, as would a link to nothing
				return fmt.Errorf("--output %s: want a regular file", output)
			}
			file, err := newestState(cmd.Context(), stateDir)
			if err != nil {
				return err
			}
			text, warning, findings := checkpoint.Export(file, target)
			if len(findings) > 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "A kubelet would refuse this state:")
				if err := checkpoint.WriteFindings(cmd.ErrOrStderr(), findings); err != nil {
					return commandline.Failed(err)
				}
				return commandline.ErrFindings
			}
			if warning != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "Warning: "+warning)
			}
			if output == "" || output == "-" {
				_, err = cmd.OutOrStdout().Write(text) // no newline: the text as a kubelet writes it
				return commandline.Failed(err)
			}
			return commandline.Failed(renameio.WriteFile(output, text, 0o600, renameio.WithTempDir(filepath.Dir(output))))
		},
	}
	addStateDir(command, &stateDir)
	command.Flags().StringVarP(&output, "output", "o", "", "write this file instead of standard output")
	command.Flags().StringVar(&target, "for", "", "version of the kubelet that is to read the state: "+strings.Join(checkpoint.Targets, ", "))
	commandline.Complete(command, "for", checkpoint.Targets...)
	return command
}

func newStateShowCommand() *cobra.Command {
	var format string
	command := &cobra.Command{
		Use:   "show FILE",
		Short: "Show the nodes and containers of a state file, a kubelet's or the plugin's",
		Long: `Prints what every NUMA node has, has given and has left, and where each container is allocated. In JSON "reserved" is what containers
have, and "systemReserved" what the system has, as in the file. The file is only read; "state verify" says whether it is right.`,
		Example: `  nri-memory-manager state show /var/lib/nri-memory-manager/memory_manager_state
  nri-memory-manager state show /var/lib/kubelet/memory_manager_state -o json`,
		Args: commandline.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := checkpoint.ReadFile(args[0])
			if err != nil {
				return err
			}
			listing := checkpoint.NewListing(args[0], file)
			return commandline.Failed(commandline.Write(cmd.OutOrStdout(), format, listing, listing.WriteTable))
		},
	}
	commandline.AddOutput(command, &format, "table", "json")
	return command
}

func newStateVerifyCommand() *cobra.Command {
	var machinePath, configPath string
	command := &cobra.Command{
		Use:   "verify FILE",
		Short: "Verify a state file: its checksum, its sums and groups, and whether it fits this machine or another one",
		Long: `Lists everything that is wrong with a state file and what to do about it; the exit status is then 1. The memory of
the nodes may differ from the file's by the configuration's stateTolerance (64Mi), as long as the containers still fit; huge
pages may not. Without --config, what the file has reserved for the system is taken as right.`,
		Example: `  nri-memory-manager state verify /var/lib/kubelet/memory_manager_state
  nri-memory-manager state verify memory_manager_state --machine two-nodes.yaml --config config.yaml`,
		Args: commandline.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, findings, err := checkpoint.Verify(args[0])
			if err != nil {
				return err
			}
			misfits, err := compareState(file.State, machinePath, configPath)
			if err != nil {
				return err
			}
			findings = append(findings, misfits...)
			out := cmd.OutOrStdout()
			if len(findings) == 0 {
				fmt.Fprintf(out, "%s is good: %d containers on %d nodes.\n", args[0], len(file.State.Entries), len(file.State.Nodes))
				return nil
			}
			if err := checkpoint.WriteFindings(out, findings); err != nil {
				return commandline.Failed(err)
			}
			return commandline.ErrFindings
		},
	}
	command.Flags().StringVar(&machinePath, "machine", "", "machine file, or folder with a copy of sys and proc, instead of this machine")
	command.Flags().StringVar(&configPath, "config", "", "configuration file, for what is reserved on each node")
	return command
}

// compareState lists where a state does not fit a machine. Without a configuration the nodes reserve what they do in
// the state.
func compareState(s memorymanager.State, machinePath, configPath string) ([]checkpoint.Finding, error) {
	m, err := sysfs.Load(machinePath)
	if err != nil {
		return nil, err
	}
	c, err := loadConfig(configPath)
	if err != nil {
		return nil, err
	}
	resolved, err := c.Resolve(m)
	if err != nil {
		return nil, err
	}
	if len(s.Nodes) == 0 || !resolved.Static {
		return nil, nil
	}
	nodes := claims.WithReserved(resolved.Nodes, resolved.Claimable)
	if configPath == "" {
		nodes = checkpoint.ReserveAs(s, nodes)
	}
	manager, err := memorymanager.New(nodes, resolved.Manager)
	if err != nil {
		return []checkpoint.Finding{{Where: "machine", What: err.Error(), Do: "look whether the file is of this machine, or name its configuration with --config"}}, nil
	}
	return checkpoint.Compare(s, manager.Nodes(), resolved.StateTolerance), nil
}
