// Package commandline has what the commands of both programs share: errors that suggest the subcommand, flag or value that was meant,
// the completion of values, and the formats of what they print.
package commandline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// NoArgs refuses arguments as cobra.NoArgs does, and suggests the subcommand that the first one is near to, or names all.
func NoArgs(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	var names []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	return fmt.Errorf("%w%s", err, spelling.HintOr(args[0], names))
}

// Args refuses fewer and more arguments, and names those that the command's usage has. At most -1 is any number.
func Args(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		_, want, _ := strings.Cut(cmd.Use, " ")
		if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); len(args) == 0 && example != "" {
			return fmt.Errorf("%s is missing, as in %q", want, example)
		}
		return fmt.Errorf("accepts %s, received %d arguments", want, len(args))
	}
}

// flagError suggests the flag that an unknown one is near to. A subcommand that is not known comes first, unless it may be the value of the
// flag that was meant.
func flagError(cmd *cobra.Command, args []string, err error) error {
	if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
		return NoArgs(cmd, cmd.Flags().Args())
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
	}
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	if name := spelling.Nearest(unknown.GetSpecifiedName(), names); name != "" {
		return fmt.Errorf("%w, did you mean %q?", err, "--"+name)
	}
	words := slices.DeleteFunc(slices.Clone(args), func(word string) bool { return strings.HasPrefix(word, "-") })
	if found, rest, wrong := cmd.Root().Find(words); cmd.HasSubCommands() && wrong == nil && found == cmd && len(rest) > 0 {
		return NoArgs(found, rest)
	}
	return err
}

// output keeps the first error of a writer, which cobra drops for help.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// Execute runs a command line. An error about a flag suggests the one that was meant, and output that cannot be written is an error.
func Execute(ctx context.Context, root *cobra.Command, args []string) error {
	root.SetArgs(args)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagError(cmd, args, err) })
	out := &output{Writer: root.OutOrStdout()}
	root.SetOut(out)
	cobrasOwn(root, args)
	switch err := root.ExecuteContext(ctx); {
	case out.err != nil:
		return Failed(out.err)
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return Failed(errors.New("interrupted"))
	default:
		return err
	}
}

// cobrasOwn makes the commands help and completion refuse an unknown command and shell.
func cobrasOwn(root *cobra.Command, args []string) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	for _, own := range root.Commands() {
		switch own.Name() {
		case "completion":
			own.Args, own.RunE = NoArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		case "help":
			own.Args = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err == nil && len(rest) > 0 {
					err = NoArgs(found, rest)
				}
				return err
			}
		}
	}
}

// Complete has a flag that the command has complete its values.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// Check refuses a value of a flag that is not one of those known.
func Check(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("--%s %q: want one of %s%s", flag, value, strings.Join(known, ", "), spelling.Hint(value, known))
}

// Exit codes of every command.
const (
	ExitOK       = 0
	ExitFailed   = 1 // something was found, rejected or could not be done
	ExitBadInput = 2 // the flags, a file or this host are not what they should be
)

// ErrFindings ends a command with ExitFailed after it has printed what it found.
var ErrFindings = errors.New("findings")

type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Failed marks an error as one of doing, which ends a command with ExitFailed; every other error is bad input.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// ExitCode is the exit code for a command's error, which is told first.
func ExitCode(err error, tell func(error)) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrFindings):
		return ExitFailed
	}
	tell(err)
	if errors.As(err, &failure{}) {
		return ExitFailed
	}
	return ExitBadInput
}

// AddOutput adds the flag --output with its completion; the first format is the default, and one that is not known is refused before
// the command runs.
func AddOutput(cmd *cobra.Command, format *string, known ...string) {
	cmd.Flags().StringVarP(format, "output", "o", known[0], spelling.List(known))
	Complete(cmd, "output", known...)
	cmd.PreRunE = func(*cobra.Command, []string) error { return Check("output", *format, known...) }
}

// Write writes a document as JSON or YAML, or in any other format by the function for people. A list without items is [], never null.
func Write(to io.Writer, format string, document any, people func(io.Writer) error) error {
	if list := reflect.ValueOf(document); list.Kind() == reflect.Slice && list.IsNil() {
		document = []struct{}{}
	}
	switch format {
	case "json":
		encoder := json.NewEncoder(to)
		encoder.SetIndent("", "  ")
		return encoder.Encode(document)
	case "yaml":
		text, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		_, err = to.Write(text)
		return err
	}
	return people(to)
}
