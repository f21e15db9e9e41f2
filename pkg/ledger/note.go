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
	// Fields are those of the pod or container that it is about, and more.
	Fields map[string]any
	// Err is the cause; nil when there is none.
	Err error
}

// note adds a line for the log.
func (l *Ledger) note(level Level, text string, fields map[string]any, err error) {
	l.step.effects.Notes = append(l.step.effects.Notes, Note{Level: level, Text: text, Fields: fields, Err: err})
}
