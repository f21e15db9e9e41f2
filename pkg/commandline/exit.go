package commandline

import "errors"

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
