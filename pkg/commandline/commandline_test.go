package commandline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func program() *cobra.Command {
	nothing := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "program", Args: NoArgs, RunE: nothing, SilenceErrors: true, SilenceUsage: true}
	root.PersistentFlags().String("kubeconfig", "", "")
	state := &cobra.Command{Use: "state", Args: NoArgs, RunE: nothing}
	state.AddCommand(&cobra.Command{Use: "verify FILE", Example: "  program state verify a.json\n  program state verify b.json", Args: Args(1, 1), RunE: nothing})
	status := &cobra.Command{Use: "status", Args: NoArgs, RunE: nothing}
	status.Flags().String("state-dir", "", "")
	status.Flags().StringP("output", "o", "table", "")
	status.Flags().String("secret", "", "")
	_ = status.Flags().MarkHidden("secret")
	root.AddCommand(state, status, &cobra.Command{Use: "hidden", Hidden: true, RunE: nothing})
	return root
}

func TestWhatIsNearIsSuggested(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"a subcommand":           {[]string{"statsu"}, `unknown command "statsu" for "program", did you mean "status"?`},
		"none is near":           {[]string{"fly"}, `unknown command "fly" for "program"; want completion, state or status`},
		"none that is hidden":    {[]string{"hiden"}, `unknown command "hiden" for "program"; want completion, state or status`},
		"a subcommand below":     {[]string{"state", "verfy"}, `unknown command "verfy" for "program state", did you mean "verify"?`},
		"none below is near":     {[]string{"state", "fly"}, `unknown command "fly" for "program state"; want verify`},
		"a shell":                {[]string{"completion", "zzsh"}, `unknown command "zzsh" for "program completion", did you mean "zsh"?`},
		"no shell is near":       {[]string{"completion", "csh-like"}, `unknown command "csh-like" for "program completion"; want bash, fish, powershell or zsh`},
		"a command without any":  {[]string{"status", "web"}, `unknown command "web" for "program status"`},
		"before a flag":          {[]string{"fly", "--fast"}, `unknown command "fly" for "program"; want completion, state or status`},
		"one below, and a flag":  {[]string{"state", "verfy", "-x"}, `unknown command "verfy" for "program state", did you mean "verify"?`},
		"help of none":           {[]string{"help", "statsu"}, `unknown command "statsu" for "program", did you mean "status"?`},
		"help of one below":      {[]string{"help", "state", "verfy"}, `unknown command "verfy" for "program state", did you mean "verify"?`},
		"before its own flag":    {[]string{"--fast", "fly"}, `unknown command "fly" for "program"; want completion, state or status`},
		"a flag, and its value":  {[]string{"--kubecfg", "fly"}, `unknown flag: --kubecfg, did you mean "--kubeconfig"?`},
		"a flag, and a command":  {[]string{"--fast", "status"}, "unknown flag: --fast"},
		"an argument is missing": {[]string{"state", "verify"}, `FILE is missing, as in "program state verify a.json"`},
		"one too many":           {[]string{"state", "verify", "a", "b"}, "accepts FILE, received 2 arguments"},
		"a flag":                 {[]string{"status", "--statedir", "x"}, `unknown flag: --statedir, did you mean "--state-dir"?`},
		"a flag of all commands": {[]string{"status", "--kubecfg=x"}, `unknown flag: --kubecfg, did you mean "--kubeconfig"?`},
		"no flag is near":        {[]string{"status", "--fast"}, "unknown flag: --fast"},
		"no flag that is hidden": {[]string{"status", "--secrte"}, "unknown flag: --secrte"},
		"a letter":               {[]string{"status", "-x"}, "unknown shorthand flag: 'x' in -x; usage: program status [flags]"},
		"a value is missing":     {[]string{"status", "--output"}, "flag needs an argument: --output; usage: program status [flags]"},
	} {
		t.Run(name, func(t *testing.T) {
			root := program()
			if err := Execute(t.Context(), root, test.args); err == nil || err.Error() != test.want {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestErrorsThatAreNoBadInput(t *testing.T) {
	for name, test := range map[string]struct {
		out  io.Writer
		args []string
		want string
	}{
		"help":           {fullDisk{}, []string{"--help"}, "no space left on device"},
		"of a command":   {fullDisk{}, []string{"help", "status"}, "no space left on device"},
		"completion":     {fullDisk{}, []string{"completion", "bash"}, "no space left on device"},
		"an interrupt":   {io.Discard, []string{"slow"}, "interrupted"},
		"nothing of all": {io.Discard, []string{"--help"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			root := program()
			root.AddCommand(&cobra.Command{Use: "slow", RunE: func(cmd *cobra.Command, _ []string) error {
				stop()
				return fmt.Errorf("no longer waits: %w", cmd.Context().Err())
			}})
			root.SetOut(test.out)
			told, want := "", ExitOK
			if test.want != "" {
				want = ExitFailed
			}
			if code := ExitCode(Execute(ctx, root, test.args), func(err error) { told = err.Error() }); code != want || told != test.want {
				t.Errorf("exit %d with %q, want %d with %q", code, told, want, test.want)
			}
		})
	}
}

// jq '.[]' takes an empty list, and not null.
func TestAListOfNothing(t *testing.T) {
	for format, want := range map[string]string{"json": "[]\n", "yaml": "[]\n", "table": "people"} {
		var out strings.Builder
		err := Write(&out, format, []int(nil), func(to io.Writer) error { _, err := io.WriteString(to, "people"); return err })
		if err != nil || out.String() != want {
			t.Errorf("%s: %q (%v), want %q", format, out.String(), err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for value, want := range map[string]string{
		"json": "",
		"jsno": `--output "jsno": want one of table, json, did you mean "json"?`,
		"xml":  `--output "xml": want one of table, json`,
		"":     `--output "": want one of table, json`,
	} {
		got := ""
		if err := Check("output", value, "table", "json"); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}
