//go:build tools

// Package tools pins h2spec, a test of HTTP/2 servers; ../test_h2spec.py builds and runs it.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
