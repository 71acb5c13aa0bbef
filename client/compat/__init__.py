"""The interfaces of other clients on top of this one (`strandline.compat`), so that a program is ported by changing its
imports."""
