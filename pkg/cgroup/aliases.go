package cgroup

// The names that the protector's files and the journal's know.
var limitText, parseLimit = FormatLimit, ParseLimit
