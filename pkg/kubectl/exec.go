package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

// output is what a command in a container has written, and its exit code.
type output struct {
	text, errors []byte
	code         int
}

// maxOutput bounds what is taken of a command, in bytes; a node with a thousand containers has a document of 2 MB.
const maxOutput = 64 << 20

// limited keeps what fits.
type limited struct{ bytes.Buffer }

func (l *limited) Write(data []byte) (int, error) {
	if l.Len()+len(data) > maxOutput {
		return 0, fmt.Errorf("more than %d MiB", maxOutput>>20)
	}
	return l.Buffer.Write(data)
}

// executor runs commands as kubectl exec does.
type executor struct {
	client rest.Interface
	config *rest.Config
}

func (e executor) run(ctx context.Context, d *daemon, command []string) (output, error) {
	request := e.client.Post().Resource("pods").Namespace(d.namespace).Name(d.pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: d.container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	stream, err := e.stream(request)
	if err != nil {
		return output{}, err
	}
	type result struct {
		output
		err error
	}
	done := make(chan result, 1) // a stream may be slow to end after its context
	go func() {
		var out, errOut limited
		err := stream.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
		r := result{output{text: out.Bytes(), errors: errOut.Bytes()}, err}
		if exited, ok := errors.AsType[exec.CodeExitError](err); ok {
			r.code, r.err = exited.Code, nil
		}
		done <- r
	}()
	select {
	case r := <-done:
		return r.output, r.err
	case <-ctx.Done():
		return output{}, ctx.Err()
	}
}

// stream prefers a WebSocket; API servers before 1.30, and some proxies, know SPDY alone.
func (e executor) stream(request *rest.Request) (remotecommand.Executor, error) {
	url := request.URL()
	socket, err := remotecommand.NewWebSocketExecutor(e.config, "GET", url.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(e.config, "POST", url)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// ask runs a command of the daemon on a node within the time of a node. What is answered is printable, and its exit code is that of
// success, or of a report of verify with findings.
func (c *cluster) ask(ctx context.Context, d *daemon, command string, args ...string) (output, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer in %s (--node-timeout)", c.timeout.Round(time.Millisecond)))
	defer cancel()
	out, err := c.run(ctx, d, d.commandLine(command, args...))
	out.text, out.errors = []byte(printable(string(out.text))), []byte(printable(string(out.errors)))
	if errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	switch {
	case forbidden(err):
		return out, commandline.Failed(denied(err, "create", "pods/exec", d.namespace))
	case err != nil:
		return out, commandline.Failed(silence{notAnswering, d.node, err.Error()})
	case out.code == commandline.ExitOK, command == "verify" && out.code == commandline.ExitFailed && len(out.text) > 0: // a report is never empty
		return out, nil
	}
	return out, commandline.Failed(d.refusal(command, out))
}

// showPod prints what the daemon on a pod's node says to a command.
func (c *cluster) showPod(ctx context.Context, to io.Writer, namespace, pod, command string, args ...string) error {
	node, err := c.nodeOf(ctx, namespace, pod, command)
	if err != nil {
		return err
	}
	return c.show(ctx, to, node, command, args...)
}

// show prints what the daemon on a node says to a command.
func (c *cluster) show(ctx context.Context, to io.Writer, node, command string, args ...string) error {
	d, err := c.daemonOn(ctx, node)
	if err != nil {
		return err
	}
	out, err := c.ask(ctx, d, command, args...)
	if err != nil {
		return err
	}
	if _, err := to.Write(out.text); err != nil {
		return commandline.Failed(err)
	}
	if out.code != commandline.ExitOK {
		return commandline.ErrFindings
	}
	return nil
}

// refusal is what the daemon's command says when it fails.
func (d *daemon) refusal(command string, out output) error {
	text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(string(out.errors)), program+": "))
	for _, unknown := range []string{"unknown command", "unknown flag", "unknown shorthand flag", "accepts "} {
		if strings.HasPrefix(text, unknown) {
			return fmt.Errorf("the daemon on node %s (pod %s/%s) is too old for this: its command %s says: %s", d.node, d.namespace, d.pod, command, text)
		}
	}
	if strings.HasPrefix(text, "no daemon answers") {
		return silence{notAnswering, d.node, text}
	}
	if text == "" {
		text = fmt.Sprintf("%s ended with exit code %d", command, out.code)
	}
	return fmt.Errorf("node %s: %s", d.node, text)
}

// printable is a text without characters that a terminal obeys or that hide others, but for ends of lines and tabs. Each is written as
// JSON writes it, such as \u001b for Escape: in a JSON document that is the same value. What a node says is not trusted: one that
// was taken over must not write to the user's terminal as it likes.
func printable(text string) string {
	obeyed := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
	text = strings.ToValidUTF8(text, "\uFFFD")
	if !strings.ContainsFunc(text, obeyed) {
		return text
	}
	var shown strings.Builder
	for _, r := range text {
		if !obeyed(r) {
			shown.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&shown, `\u%04x`, unit)
		}
	}
	return shown.String()
}

func inLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(text))
}
