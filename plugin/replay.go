package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/recording"
)

func newReplayCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "replay FILE|DIR",
		Short: "Say again what a recorded plugin decided, and whether this version decides the same",
		Long: `Replay runs the events of a recording ("run --record DIR") through the code that decides, and prints a line for each
decision: moment, number of the event, pod and container, and what was decided. A decision that is not the recorded one is
followed by DIFFERS and what differs. The last line counts events, decisions, differences, and what was not recorded. A recording has
all that its decisions follow from, the machine included, so that it can be replayed anywhere.

A folder's files are replayed one after the other. Each begins with the state that the plugin had then, so that one file is
enough. With -o json each decision is a JSON object of its own, and so are the counts.

Exit status: 0 when every decision is the recorded one, 1 when some differ, 2 on bad input.`,
		Example: `  nri-memory-manager replay /var/lib/nri-memory-manager/recordings
  nri-memory-manager replay recording-20260102T150405.000000000Z.jsonl -o json`,
		Args: commandline.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return replay(args[0], format, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	commandline.AddOutput(cmd, &format, "text", "json")
	return cmd
}

func replay(path, format string, to, errOut io.Writer) error {
	out := bufio.NewWriter(to)
	defer out.Flush()
	write := func(document any, text string) error {
		if format == "json" {
			return commandline.Failed(json.NewEncoder(out).Encode(document))
		}
		_, err := fmt.Fprintln(out, text)
		return commandline.Failed(err)
	}
	summary, err := recording.Replay(path, func(d recording.Decision) error { return write(d, d.String()) })
	if err != nil {
		return err
	}
	for _, file := range summary.Older {
		fmt.Fprintf(errOut, "nri-memory-manager: %s is left out: a version before v0.3.0 has recorded it\n", file)
	}
	for _, file := range summary.Cut {
		fmt.Fprintf(errOut, "nri-memory-manager: the last line of %s is incomplete: what follows was never written\n", file)
	}
	if err := write(summary, summary.String()); err != nil {
		return err
	}
	if summary.Differ > 0 {
		return commandline.ErrFindings
	}
	return nil
}
