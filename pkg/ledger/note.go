package ledger

// Level is the severity of a Note.
type Level int

// The levels of a note.
const (
	Debug Level = iota
	Info
	Warn
	Error
)

// Note is a line for the log.
type Note struct {
	Level Level
	Text  string
	// Fields are log fields, such as those of the pod or container.
	Fields map[string]any
	// Err is the cause; nil if there is none.
	Err error
}

func (l *Ledger) note(level Level, text string, fields map[string]any, err error) {
	l.step.effects.Notes = append(l.step.effects.Notes, Note{Level: level, Text: text, Fields: fields, Err: err})
}
