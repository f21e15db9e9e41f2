// Command nri-memory-manager brings Kubernetes' Memory Manager and Memory QoS to a node through NRI, without the kubelet.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends what waits for its input
	code := execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	if len(args) == 0 && launchedByRuntime() {
		args = []string{"run"}
	}
	root := newRootCommand()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	return exitCode(commandline.Execute(ctx, root, args), errOut)
}

func exitCode(err error, errOut io.Writer) int {
	return commandline.ExitCode(err, func(err error) {
		for _, one := range strictyaml.List(err) {
			fmt.Fprintln(errOut, "nri-memory-manager: "+one.Error())
		}
	})
}

// launchedByRuntime is true for a pre-installed plugin: the runtime starts it without arguments, with its end of the
// connection in NRI_PLUGIN_SOCKET and its name in NRI_PLUGIN_NAME.
func launchedByRuntime() bool {
	return os.Getenv("NRI_PLUGIN_SOCKET") != "" || os.Getenv("NRI_PLUGIN_NAME") != ""
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "nri-memory-manager",
		Short: "NUMA-aware memory and Memory QoS for Kubernetes nodes, through NRI",
		Long: `nri-memory-manager places the memory of Guaranteed pods on NUMA nodes (Memory Manager, Static policy) and sets
memory.min, memory.low and memory.high (Memory QoS) for the containers that containerd or CRI-O starts.

Exit status: 0 done, 1 something was found, rejected or failed, 2 bad input.`,
		Example: `  nri-memory-manager run --config /etc/nri/memory-manager/config.yaml
  nri-memory-manager status
  nri-memory-manager explain default/database
  nri-memory-manager replay /var/lib/nri-memory-manager/recordings
  nri-memory-manager verify
  nri-memory-manager completion bash > /etc/bash_completion.d/nri-memory-manager`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newRunCommand(), newSimulateCommand(), newStatusCommand(), newExplainCommand(), newOOMCommand(), newReplayCommand(), newVerifyCommand(), newRollbackCommand(), newConfigCommand(), newMachineCommand(), newStateCommand(), newVersionCommand())
	return root
}
